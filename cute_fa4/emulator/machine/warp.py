"""A warp: 32 lanes of registers and predicates, and groups of lanes that share one program counter.

    R   uint32 (rows, 32): a 32-bit register is one row, a 16-bit one the low half of its row, a 64-bit one two
        rows viewed as uint64[32]
    P   uint32 (predicates,): bit l is lane l

    groups after a divergent branch, lanes 1..31 wait at pc 40 for lane 0:
        Group(pc=12, mask=0x00000001)            runs: smallest pc first
        Group(pc=40, mask=0xFFFFFFFE, wait=...)  merges when lane 0 gets to pc 40

An instruction function sees one group: ``warp.mask`` holds the lanes that execute it.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cute_fa4.emulator.ptx.errors import EmulatorError
from cute_fa4.emulator.ptx.syntax import Addr, Imm, Pred, Reg, Sink, Special, Symbol, location_lines

FULL = 0xFFFFFFFF
WARP_SIZE = 32

# Generic address windows: any range that no host allocation uses. User addresses of x86-64 and AArch64 Linux end
# below 2**56.
SHARED_BASE = 0x7F << 56
PARAM_BASE = 0x7E << 56
LOCAL_BASE = 0x7D << 56

LANE_INDEX = np.arange(WARP_SIZE, dtype=np.uint32)
_LANES: dict[int, np.ndarray] = {}  # mask -> sorted lane numbers
_BOOLS: dict[int, np.ndarray] = {}  # mask -> bool[32]


def lanes_of(mask):
    """Lane numbers of a bitmask, lowest first."""
    lanes = _LANES.get(mask)
    if lanes is None:
        lanes = _LANES[mask] = [lane for lane in range(WARP_SIZE) if mask >> lane & 1]
    return lanes


def bools_of(mask):
    """bool[32] of a bitmask."""
    bools = _BOOLS.get(mask)
    if bools is None:
        bools = _BOOLS[mask] = ((np.uint32(mask) >> LANE_INDEX) & 1).astype(bool)
    return bools


@functools.lru_cache(maxsize=4096)
def _constant(value, dtype):
    """32 lanes of one value, for reading."""
    lanes = np.full(WARP_SIZE, value, dtype)
    lanes.setflags(write=False)
    return lanes


def mask_of(bools):
    """Bitmask of bool[32]."""
    return int(np.packbits(bools, bitorder="little").view(np.uint32)[0])


class Wait:
    """Why lanes wait: returned by an instruction function, which is called again when ready().

    what     text for reports, or a function that returns it when a report is written
    barrier  the MBarrier waited for, with its parity, if there is one
    timeout  not None: if nothing else can progress, the wait times out; the function is then called
             with warp.resumed.timed_out set
    polls    it is a spin-wait on global memory (polls.py)
    """

    __slots__ = (
        "barrier", "ins", "mask", "parity", "payload", "polls", "ready", "required", "timed_out", "timeout", "what",
    )  # fmt: skip

    def __init__(
        self,
        ready: Callable[[], bool],
        what: str | Callable[[], str],
        barrier=None,
        parity=None,
        timeout=None,
    ):
        self.ready, self.what, self.barrier, self.parity, self.timeout = (
            ready,
            what,
            barrier,
            parity,
            timeout,
        )
        self.timed_out = self.polls = False
        self.required = 0  # not 0: wait until these live lanes are in the group
        self.mask = 0
        self.ins = None


def converge(required, what):
    """A Wait that ends when all live lanes of ``required`` have arrived at the same instruction."""
    wait = Wait(lambda: False, what)
    wait.required = required
    return wait


class Group:
    """Lanes of a warp with one program counter."""

    __slots__ = ("mask", "pc", "wait")

    def __init__(self, pc, mask):
        self.pc, self.mask, self.wait = pc, mask, None


@dataclass(frozen=True, slots=True, eq=False)
class Issuer:
    """The issuer of an instruction: attached to asynchronous operations and memory accesses, for messages."""

    cta: object
    warp: object
    ins: object

    def who(self):
        """ "mma" when the warp has a role name, else "warp 12"; with the CTA rank in a cluster."""
        name = self.warp.role or f"warp {self.warp.index}"
        return f"{name} of CTA rank {self.cta.rank}" if self.cta.cluster.size > 1 else name

    def where(self):
        """The indented lines of a message: CTA, warp, PTX line, Python line."""
        cta, warp, ins = self.cta, self.warp, self.ins
        lines = [
            f"  CTA {tuple(cta.id)}"
            + (f", rank {cta.rank} of its cluster" if cta.cluster.size > 1 else "")
        ]
        lines.append(f"  warp {warp.index}" + (f" ({warp.role})" if warp.role else ""))
        if ins is not None:
            lines += [f"  {line}" for line in location_lines(ins)]
        return "\n".join(lines)


class Warp:
    """One warp of a CTA.

    index    number in the CTA
    mask     bitmask of the lanes that execute the current instruction (never 0 in an instruction function)
    live     bitmask of the lanes that have not exited
    resumed  the Wait whose end led to this call of the instruction function, None on the first call
    """

    def __init__(self, cta, index, rows, predicates, live=FULL, registers=None):
        self.cta = cta
        self.index = index
        # An unwritten register may hold anything: all ones make an integer huge and a float NaN.
        self.R = np.empty((max(rows, 2), WARP_SIZE), np.uint32) if registers is None else registers
        self.R.fill(FULL)
        self.P = np.zeros(max(predicates, 1), np.uint32)
        self.R_pointer = self.R.ctypes.data
        self.P_pointer = self.P.ctypes.data
        # Reading one predicate through a memoryview costs a third of NumPy's scalar access.
        self.P_view = memoryview(self.P)
        self._R64 = self.R.reshape(-1).view(np.uint64)
        self.live = live
        self.mask = live
        self.ins = None
        self.resumed = None
        self.yield_slice = False
        self.rotate = False
        self.groups = [Group(0, live)]
        self.role = cta.labels.role(index)
        self.executions = (
            None  # set by the scheduler: execution counts of every step by the warps of this role
        )
        self.registers_per_thread = 0
        self.local_bytes = 0
        self.polls = {}  # instruction -> polls.Poll of its latest look at global memory
        self.order = None  # checks.clocks.Strand of a launch with ordering checks
        # Asynchronous copies by kind ("cp.async", "cp.async.bulk") and lane: CopyGroups of copy_groups.py. In the
        # warp, because copies refer to their warp: a global table, even a weak one, would keep every launch alive.
        self.copy_groups = {}
        self.carry = self.carry_written = (
            0  # CC.CF of each lane, and which lanes have written theirs
        )
        self.pending_rows = frozenset()  # rows of tcgen05.ld before their tcgen05.wait::ld
        self._local = None
        self.instructions = 0

    # -- what an instruction function uses --------------------------------------------------------------

    @property
    def lanes(self):
        """Executing lane numbers, lowest first."""
        return lanes_of(self.mask)

    @property
    def lane0(self):
        """The lowest executing lane."""
        mask = self.mask
        return (mask & -mask).bit_length() - 1

    def read32(self, op):
        """uint32[32] of a register, constant, special register or shared variable. Do not change it."""
        kind = type(op)
        if kind is Reg:
            return self.R[op.row]
        if kind is Imm:
            return _constant(op.value & FULL, np.uint32)
        return self.read64(op).astype(np.uint32)

    def read64(self, op):
        """uint64[32] of a 64-bit register (or a narrower one, zero-extended), constant or address."""
        kind = type(op)
        if kind is Reg:
            if op.bits == 64:
                return self._R64[op.row * 16 : op.row * 16 + 32]
            return self.R[op.row].astype(np.uint64)
        if kind is Imm:
            return _constant(op.value & 0xFFFFFFFFFFFFFFFF, np.uint64)
        if kind is Special:
            return self.cta.special(self, op.name)
        if kind is Symbol:
            return _constant(self.cta.symbol_address(op), np.uint64)
        if kind is Addr:
            return self.address(op)
        raise self.located(EmulatorError(f"operand {op!r} has no value"))

    def read_pred(self, op):
        """Bitmask of a predicate operand over all lanes; an Imm is all lanes or none."""
        if type(op) is Pred:
            bits = self.P_view[op.index]
            return bits ^ FULL if op.negated else bits
        if type(op) is Imm:
            return FULL if op.value else 0
        raise self.located(EmulatorError(f"operand {op!r} is not a predicate"))

    def write32(self, op, values):
        """Set a 16- or 32-bit register in the executing lanes; a 64-bit one is zero-extended."""
        if type(op) is Reg:
            if op.bits == 64:
                return self.write64(op, np.asarray(values).astype(np.uint64))
            if op.bits == 16:
                values = np.asarray(values) & np.uint32(0xFFFF)
            if self.mask == FULL:
                self.R[op.row] = values
            else:
                np.copyto(self.R[op.row], values, where=bools_of(self.mask), casting="unsafe")
        elif type(op) is not Sink:
            self.fault(f"cannot write to operand {op!r}")

    def write64(self, op, values):
        """Set a 64-bit register in the executing lanes; a narrower one takes the low bits."""
        if type(op) is Reg:
            if op.bits != 64:
                return self.write32(op, np.asarray(values).astype(np.uint32))
            if self.mask == FULL:
                self.read64(op)[:] = values
            else:
                np.copyto(self.read64(op), values, where=bools_of(self.mask), casting="unsafe")
        elif type(op) is not Sink:
            self.fault(f"cannot write to operand {op!r}")

    def write_pred(self, op, bits):
        """Set a predicate in the executing lanes from a bitmask."""
        if type(op) is Pred:
            mask = self.mask
            self.P_view[op.index] = self.P_view[op.index] & ~mask & FULL | bits & mask
        elif type(op) is not Sink:
            self.fault(f"cannot write to operand {op!r}")

    def address(self, op):
        """uint64[32]: base + offset of an Addr, in the space of the instruction."""
        base = op.base if type(op) is Addr else op
        values = self.read64(base)
        offset = op.offset if type(op) is Addr else 0
        if not offset:
            return values
        values = values + np.uint64(offset & 0xFFFFFFFFFFFFFFFF)
        # 32-bit addresses wrap at 32 bits.
        return values & np.uint64(FULL) if type(base) is Reg and base.bits == 32 else values

    def uniform(self, values):
        """The one value of the executing lanes; faults if they differ."""
        values = np.asarray(values)
        mask = self.mask
        first = values[(mask & -mask).bit_length() - 1]
        if mask & (mask - 1):  # more than one lane
            chosen = values if mask == FULL else values[bools_of(mask)]
            if np.count_nonzero(chosen == first) != chosen.size:
                self.fault(
                    f"an operand must be the same in all lanes, but is 0x{int(first):x} in lane {self.lane0} "
                    f"and 0x{int(chosen[chosen != first][0]):x} in another"
                )
        return int(first)

    def issuer(self):
        """Record of the current instruction, for asynchronous operations and messages."""
        return Issuer(self.cta, self, self.ins)

    def located(self, error):
        """The same kind of error with the current location appended to its message."""
        return type(error)(f"{error}\n{self.issuer().where()}")

    def fault(self, message, kind=EmulatorError):
        """Raise kind(message) with CTA, warp, role, PTX and Python line."""
        raise self.located(kind(message))

    def note_progress(self):
        """Record a change that another warp may wait for (see the deadlock rule)."""
        self.cta.machine.progress += 1

    # -- scheduling ------------------------------------------------------------------------------------------

    @property
    def done(self):
        """All lanes have exited."""
        return not self.groups

    def local_memory(self):
        """uint8 (32, bytes): local memory of every lane, poisoned until written."""
        if self._local is None:
            self._local = np.full((WARP_SIZE, self.local_bytes), 0xFF, np.uint8)
        return self._local

    def exit_lanes(self, mask):
        """Lanes executed ret or exit."""
        self.live &= ~mask
        self.cta.lanes_exited(mask)

    def runnable(self):
        """Is there a group that can execute? Ends completed waits."""
        for group in self.groups:
            wait = group.wait
            if wait is None:
                return True
            if wait.required:
                if wait.required & self.live & ~self._met(group.pc) == 0:
                    return True
            elif wait.timed_out or wait.ready():
                return True
        return False

    def _met(self, pc):
        """Lanes of all groups that wait for each other at an instruction; the next slice merges them.

        Lanes that come around a loop meet the others later, and a slice may end before they are one group.
        """
        met = 0
        for group in self.groups:
            if group.pc == pc and group.wait is not None and group.wait.required:
                met |= group.mask
        return met
