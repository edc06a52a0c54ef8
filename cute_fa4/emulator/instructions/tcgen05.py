"""tcgen05: the tensor core.

tcgen05.mma     in flight, in order, in the queue ("tensor", cta) of the issuing CTA
tcgen05.commit  after the MMAs in the same queue, then arrives on mbarriers
"""

import numpy as np

from cute_fa4.emulator.checks import tensor as tensor_checks
from cute_fa4.emulator.instructions.instruction_table import instruction
from cute_fa4.emulator.machine.matrix_descriptors import decode_instruction
from cute_fa4.emulator.machine.mbarrier import Note
from cute_fa4.emulator.machine.shifted import ShiftedMultiply
from cute_fa4.emulator.machine.tensor_core import MatrixMultiply
from cute_fa4.emulator.machine.weight_stationary import WeightStationaryMultiply
from cute_fa4.emulator.ptx.errors import EmulatorError, IllegalAccess
from cute_fa4.emulator.ptx.parser import Addr, Imm, Vec

GROUP = r"\.cta_group::([12])"


# .collector says which operand to keep in a buffer for the next MMA: speed, not meaning.
@instruction(
    pattern=rf"tcgen05\.mma{GROUP}\.kind::(f16|tf32|f8f6f4|i8)"
    r"(?:(\.ashift)(?:\.collector::a::(?:lastuse|discard))?|(?:\.collector::a::(?:fill|use|lastuse|discard))?)"
)
def mma(warp, ins, match):
    """[d], a, b, idesc{, {disable-output-lane}}, enable-input-d{, scale-input-d}: see tensor_core.py, shifted.py."""
    group, kind = int(match.group(1)), match.group(2)
    refuse_several_threads(warp)
    cta = warp.cta
    cta.tmem.use_cta_group(group)
    lane = warp.lane0
    d, a, b, idesc, *rest = ins.operands
    disabled = rest.pop(0) if isinstance(rest[0], Vec) else None
    a_in_tensor_memory = isinstance(a, Addr)
    descriptor = decode_instruction(int(warp.read32(idesc)[lane]), kind, group)
    if descriptor.reserved:
        note_reserved(warp)
    multiply = (ShiftedMultiply if match.group(3) else MatrixMultiply)(
        descriptor,
        pair_of(warp) if group == 2 else (cta,),
        int(warp.address(d)[lane]),
        int((warp.address(a) if a_in_tensor_memory else warp.read64(a))[lane]),
        int(warp.read64(b)[lane]),
        a_in_tensor_memory,
        bool(warp.read_pred(rest[0]) >> lane & 1),
        scale_log2(rest[1:], kind),
        enabled_lanes(warp, disabled, group, lane),
    )
    submit_product(warp, multiply)


@instruction(
    pattern=r"tcgen05\.mma\.ws\.cta_group::1\.kind::(f16|tf32|f8f6f4|i8)"
    r"(?:\.collector::b[0-3]::(?:fill|use|lastuse|discard))?"
)
def mma_ws(warp, ins, match):
    """[d], a, b, idesc, enable-input-d{, zero-column-mask-desc}: see weight_stationary.py."""
    refuse_several_threads(warp)
    cta, lane = warp.cta, warp.lane0
    cta.tmem.use_cta_group(1)
    d, a, b, idesc, enable, *mask = ins.operands
    in_tensor_memory = isinstance(a, Addr)
    multiply = WeightStationaryMultiply(
        decode_instruction(int(warp.read32(idesc)[lane]), match[1], 1, True),
        (cta,),
        int(warp.address(d)[lane]),
        int((warp.address(a) if in_tensor_memory else warp.read64(a))[lane]),
        int(warp.read64(b)[lane]),
        in_tensor_memory,
        bool(warp.read_pred(enable) >> lane & 1),
        mask=int(warp.read64(mask[0])[lane]) if mask else 0,
    )
    submit_product(warp, multiply)


def refuse_several_threads(warp):
    """Each thread that issues an MMA multiplies once more."""
    if warp.mask & warp.mask - 1:
        warp.fault(
            f"tcgen05.mma by {len(warp.lanes)} threads would multiply as often; elect one thread"
        )


def note_reserved(warp):
    """PTX wants bit 29 of a descriptor to be 0; published kernels of kind::f16 set it. One note a launch."""
    machine = warp.cta.machine
    text = "tcgen05.mma instruction descriptor: reserved bit 29 is 1; PTX accepts 0"
    if machine.ordering is not None and machine.ordering.ptx:
        raise EmulatorError(text)
    if not any(note.check == "reserved_bit" for note in machine.notes):
        machine.notes.append(Note.of("reserved_bit", f"{text}\n{warp.issuer().where()}"))


def submit_product(warp, multiply):
    """Check an MMA and queue it for the CTA's tensor core, with the ordering checks at execution."""
    multiply.check()
    action, order = multiply.execute, warp.cta.machine.ordering
    if order is not None:
        checked = tensor_checks.multiply(order, warp, multiply)

        def action():
            checked()
            multiply.execute()

    label = str(multiply.descriptor)
    warp.cta.machine.engine.submit(action, label, warp.issuer(), queue=("tensor", warp.cta))


def scale_log2(operands, kind):
    if not operands:
        return 0
    value = operands[0].value if isinstance(operands[0], Imm) else None
    if kind not in ("f16", "tf32") or value is None or not 0 <= value <= 15:
        raise EmulatorError(
            f"scale-input-d {operands[0]} with kind::{kind}; accepted: constants 0 to 15 with f16 and tf32"
        )
    return value


def enabled_lanes(warp, disabled, group, lane):
    """bool[128] from the disable-output-lane vector, one bit a lane; None when nothing is disabled."""
    if disabled is None:
        return None
    words = np.array([warp.read32(word)[lane] for word in disabled.items], np.uint32)
    if len(words) != 4 * group:
        raise EmulatorError(f"disable-output-lane of {len(words)} registers; accepted: {4 * group}")
    if not words.any():
        return None
    if group == 2:
        raise EmulatorError(
            "disable-output-lane with disabled lanes and .cta_group::2 has no meaning in the emulator; "
            "accepted: zeros"
        )
    return ~np.unpackbits(words.view(np.uint8), bitorder="little").astype(bool)


@instruction(
    pattern=rf"tcgen05\.commit{GROUP}\.mbarrier::arrive::one(\.shared::cluster)?"
    r"(\.multicast::cluster)?\.b64"
)
def commit(warp, ins, match):
    """Arrive on an mbarrier once all earlier MMAs of this CTA have completed.

    PTX guarantees this for the MMAs of the executing thread. The emulator's queue per CTA also waits for those of
    its other threads. With .multicast::cluster: on the same offset in every CTA of the mask.
    """
    warp.cta.tmem.use_cta_group(int(match.group(1)))
    issuer, engine = warp.issuer(), warp.cta.machine.engine
    masks = warp.read32(ins.operands[1]) if match.group(3) else None
    order = warp.cta.machine.ordering
    checked = None if order is None else tensor_checks.committed(order, warp)
    for lane in warp.lanes:
        cta, offset = shared_address(warp, ins.operands[0], bool(match.group(2)), lane)
        if offset % 8:
            warp.fault(
                f"mbarrier at shared offset 0x{offset:x}: not aligned to 8 bytes", IllegalAccess
            )
        targets = (cta,) if masks is None else _ctas(warp, int(masks[lane]) & 0xFFFF)

        def arrive(targets=targets, offset=offset):
            for target in targets:
                if target.finished:
                    raise IllegalAccess(f"tcgen05.commit on CTA {target.id}, which has ended")
                barrier = target.mbarrier(offset)
                if checked is not None:
                    checked(barrier)
                barrier.arrive(1, issuer)

        engine.submit(arrive, "tcgen05.commit", issuer, queue=("tensor", warp.cta))


def _ctas(warp, mask):
    """The CTAs of the cluster whose ranks are in a 16-bit mask."""
    ctas = warp.cta.cluster.ctas
    if not mask or mask >> len(ctas):
        warp.fault(
            f"multicast to the CTA mask 0x{mask:04x} in a cluster of {len(ctas)}; accepted: a non-empty "
            f"subset of 0x{(1 << len(ctas)) - 1:04x}",
            IllegalAccess,
        )
    return tuple(cta for rank, cta in enumerate(ctas) if mask >> rank & 1)


def pair_of(warp):
    """(even, odd) CTA of the pair of this CTA: ranks that differ in their lowest bit."""
    ctas, even = warp.cta.cluster.ctas, warp.cta.rank & ~1
    if even + 1 >= len(ctas):
        warp.fault(
            f".cta_group::2 in a cluster of {len(ctas)} CTAs; launch clusters of an even size"
        )
    return ctas[even], ctas[even + 1]


def shared_address(warp, operand, is_shared, lane=None):
    """(CTA, offset) of a shared address, or of a generic one when the opcode names no state space."""
    lane = warp.lane0 if lane is None else lane
    address = int(warp.address(operand)[lane])
    if is_shared:
        return warp.cta.cluster.resolve(address)
    space, *place = warp.cta.machine.resolve_generic(address)
    if space != "shared":
        warp.fault(
            f"generic address 0x{address:x} lies in {space} memory, not in shared", IllegalAccess
        )
    return tuple(place)
