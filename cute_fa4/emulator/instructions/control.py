"""Control: traps, sleeps, register budgets, launch dependencies. Branches and exits are in warp_scheduler.py."""

import numpy as np

from cute_fa4.emulator.instructions.instruction_table import instruction
from cute_fa4.emulator.machine.mbarrier import Note
from cute_fa4.emulator.machine.warp import WARP_SIZE, Wait

_POLICY = np.full(WARP_SIZE, 0x14F0000000000000, np.uint64)  # arbitrary: policies are opaque


@instruction("trap", "brkpt")
def trap(warp, ins):
    """The kernel aborts (a failed assertion)."""
    warp.fault(f"the kernel executed {ins.opcode} in lanes {warp.lanes}")


@instruction("nanosleep.u32")
def nanosleep(warp, ins):
    """The warp yields."""
    warp.yield_slice = True


@instruction("griddepcontrol.wait")
def wait_for_grid(warp, ins):
    """Earlier grids have ended and their writes are visible; launches run one after another, so this never waits.

    PTX ISA, "Parallel Synchronization and Communication Instructions: griddepcontrol". In a dependent launch the
    ordering checks forbid accesses to the previous grid's writes before this instruction.
    """
    order = warp.cta.machine.ordering
    if order is not None:
        order.wait_for_grid(warp)


@instruction("griddepcontrol.launch_dependents", "pmevent")
def no_effect(warp, ins):
    """Later grids may start; here they start afterwards."""


@instruction(pattern=r"prefetchu?(\.[\w:]+)*|applypriority(\.[\w:]+)*")
def prefetch(warp, ins, match):
    """Caches are not modelled; the address is still read, to detect a poisoned one."""
    warp.address(ins.operands[0])


@instruction(pattern=r"setmaxnreg\.(inc|dec)\.sync\.aligned\.u32", aligned=True)
def setmaxnreg(warp, ins, match):
    """Change the registers per thread of the warp; inc waits until other warps of the CTA have released enough.

    PTX ISA, "Miscellaneous Instructions: setmaxnreg": 24 to 256, a multiple of 8. An inc to fewer registers than
    the warp has is an error at level "ptx". Otherwise it is a note, and the warp keeps its registers:
    flash-attn-4's backward pass for head dim 256 does this (its launch has 168 for each of 384 threads, two roles
    request 128).
    """
    count = ins.operands[0].value
    if count % 8 or not 24 <= count <= 256:
        warp.fault(f"setmaxnreg of {count} registers; accepted are multiples of 8 from 24 to 256")
    cta, have = warp.cta, warp.registers_per_thread
    need = (count - have) * WARP_SIZE
    if match[1] == "dec":
        if need > 0:
            warp.fault(
                f"setmaxnreg.dec to {count}, but the warp has {have} registers per thread; use .inc"
            )
    elif need < 0:
        text = f"setmaxnreg.inc to {count}, but the warp has {have} registers per thread; use .dec"
        if cta.machine.ordering is not None and cta.machine.ordering.ptx:
            warp.fault(text)
        cta.machine.notes.append(Note.of("fewer_registers", f"{text}\n{warp.issuer().where()}"))
        return None
    elif need > cta.free_registers:
        return Wait(
            lambda: need <= cta.free_registers,
            f"{need} registers (setmaxnreg.inc {have} -> {count}; the CTA has {cta.free_registers} free)",
        )
    cta.free_registers -= need
    warp.registers_per_thread = count
    warp.note_progress()
    return None


@instruction(
    pattern=r"createpolicy\.(fractional|range(?:\.global)?|cvt)\.(?:L2::evict_\w+(?:\.L2::evict_\w+)?|L2)\.b64"
)
def create_policy(warp, ins, match):
    """An opaque cache policy: caches are not modeled, so policies have no effect.

    PTX ISA, "createpolicy". A fraction outside (0, 1] is an error, as in ptxas.
    """
    if match[1] == "fractional" and len(ins.operands) > 1:
        bits = warp.read32(ins.operands[1])[warp.lanes]
        fraction = bits.view("f4")
        if ((fraction <= 0) | (fraction > 1)).any():
            warp.fault(
                f"createpolicy with the fraction {fraction.max()}; accepted: above 0, up to 1"
            )
    warp.write64(ins.operands[0], _POLICY)
