"""Cluster launch control: a CTA cancels the launch of a cluster that has not started, and runs its work itself.

    try_cancel  [a], [mbar]     the response, 16 bytes, is written like a bulk copy: later, by the asynchronous
                                proxy, with complete_tx(16). With .multicast::cluster::all to every CTA of the cluster
    query_cancel.is_canceled    was a cluster cancelled?
    query_cancel.get_first_ctaid        if so, the ctaid of its first CTA

    response, in 32-bit words     granted   x  y | z << 16  GRANTED  0        refused   0  0  REFUSED  0

PTX does not document the format of the response. Programs that read the words themselves (cuDNN's open kernels) use
what ptxas makes of query_cancel: x, the halves of the second word, bit 0 of the third. The other bits of the third
are the emulator's mark. launch.PendingClusters decides the result of a request when it is issued; responses arrive in
any order. PTX ISA, "clusterlaunchcontrol.try_cancel", "clusterlaunchcontrol.query_cancel".
"""

import numpy as np

from cute_fa4.emulator.instructions.bulk_copy import submit_load
from cute_fa4.emulator.instructions.bulk_operands import MBARRIER_ALIGNMENT, resolve_shared
from cute_fa4.emulator.instructions.instruction_table import instruction
from cute_fa4.emulator.machine.warp import FULL, mask_of
from cute_fa4.emulator.ptx.errors import EmulatorError

RESPONSE_BYTES = 16
GRANTED, REFUSED = 0xC1C00001, 0xC1C00000
POISON = 0x7FFFFFFF
"""The ctaid of a refusal, which PTX leaves undefined: compilers read it before they test the response."""


@instruction(
    pattern=r"clusterlaunchcontrol\.try_cancel\.async(\.shared::cta)?\.mbarrier::complete_tx::bytes"
    r"(\.multicast::cluster::all)?\.b128"
)
def try_cancel(warp, ins, match):
    """[a], [mbar]: request a cluster that has not started; the response goes to [a]."""
    own, generic = warp.cta, not match[1]
    for lane in warp.lanes:
        _, offset = resolve_shared(
            warp, ins.operands[0], lane, "cta", "response of try_cancel", RESPONSE_BYTES, generic
        )
        _, barrier_offset = resolve_shared(
            warp, ins.operands[1], lane, "cta", "mbarrier", MBARRIER_ALIGNMENT, generic
        )
        if own.saw_refusal:
            warp.fault(
                f"try_cancel by CTA {own.id}, which has seen that a request failed (is_canceled was false): what "
                "another one does is undefined; leave the loop at the first failure",
                EmulatorError,
            )
        first = own.machine.claim_cluster(own)
        words = (0, 0, REFUSED, 0) if first is None else _granted(*first)
        response = np.array(words, np.uint32).view(np.uint8)
        targets = own.cluster.ctas if match[2] else (own,)
        submit_load(
            warp,
            [(cta, cta) for cta in targets],
            offset,
            barrier_offset,
            RESPONSE_BYTES,
            lambda checks, response=response: response,
            "response of try_cancel",
            after_fenced_reads=True,
        )


def _granted(x, y, z):
    """The words of a response: the cluster whose first ctaid is (x, y, z)."""
    return x, y | z << 16, GRANTED, 0


def _parts(warp, handle):
    """(x, y, z, state) of a response, uint64[32] each."""
    low, high = map(warp.read64, handle.halves())
    word, half = np.uint64(FULL), np.uint64(0xFFFF)
    return low & word, low >> np.uint64(32) & half, low >> np.uint64(48), high & word


@instruction("clusterlaunchcontrol.query_cancel.is_canceled.pred.b128")
def is_canceled(warp, ins):
    """p = the response says that a cluster was cancelled."""
    state = _parts(warp, ins.operands[1])[3]
    granted, refused = mask_of(state == GRANTED), mask_of(state == REFUSED)
    if warp.mask & ~(granted | refused):
        warp.fault("is_canceled of 16 bytes that are no response of try_cancel", EmulatorError)
    if warp.mask & refused:
        warp.cta.saw_refusal = True
    warp.write_pred(ins.operands[0], granted)


@instruction(
    pattern=r"clusterlaunchcontrol\.query_cancel\.get_first_ctaid(?:::([xyz])\.b32|\.v4\.b32)\.b128"
)
def get_first_ctaid(warp, ins, match):
    """d = x, y or z, or {d, e, f, _} = all of them: the cluster's first ctaid; poison after a refusal."""
    *ctaid, state = _parts(warp, ins.operands[1])
    values = [np.where(state == GRANTED, axis, POISON).astype(np.uint32) for axis in ctaid]
    if match[1]:
        warp.write32(ins.operands[0], values["xyz".index(match[1])])
        return
    # PTX leaves the fourth element unspecified.
    values.append(np.full(32, POISON, np.uint32))
    for register, value in zip(ins.operands[0].items, values, strict=True):
        warp.write32(register, value)
