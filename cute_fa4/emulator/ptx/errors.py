"""Errors of the emulator: one class per kind of mistake, all derived from EmulatorError.

Every message starts with one line that states the error; indented lines below it have the location:

    read of 16 bytes at shared offset 0x2480: 4 of them were never written
      CTA (3, 0, 0), rank 1 of cluster 1
      warp 12 (mma), lanes 0
      PTX line 812: ld.shared.v4.b32 {%r1, %r2, %r3, %r4}, [%r9+1152];
      Python line mma.py:88
          scale = row_scale[slot]
"""


class EmulatorError(RuntimeError):
    """A kernel did something that PTX forbids or leaves undefined, or that the emulator cannot execute."""


class UnknownInstruction(EmulatorError):
    """An opcode, operand or directive without a meaning in the emulator."""


class IllegalAccess(EmulatorError):
    """An address outside every allocation, outside shared memory, or not aligned to the access size."""


class UninitializedRead(EmulatorError):
    """A read of shared or tensor memory that was never written."""


class BarrierError(EmulatorError):
    """An mbarrier or named barrier used against its rules: too many arrivals, not initialised, ..."""


class TensorMemoryError(EmulatorError):
    """Tensor memory allocated, freed or addressed against its rules."""


class TensorMapError(EmulatorError):
    """A tensor map (TMA descriptor) or bulk copy that the hardware would refuse."""


class DivergenceError(EmulatorError):
    """An instruction that needs converged lanes was reached by only some of them."""


class RaceError(EmulatorError):
    """Two accesses to the same memory, at least one of them a write, that nothing orders."""


class ProxyError(RaceError):
    """A generic write that a copy or the tensor core may miss: fence.proxy.async is missing."""


class TensorOrderError(RaceError):
    """Accesses to tensor memory ordered by a barrier, but without the tcgen05.fence that PTX asks for."""


class RegisterHazard(EmulatorError):
    """A register of tcgen05.ld is used before tcgen05.wait::ld."""


class InFlightError(EmulatorError):
    """A CTA exits without waiting for one of its asynchronous operations."""


class Deadlock(EmulatorError):
    """Nothing can make progress any more, or the instruction budget is used up."""
