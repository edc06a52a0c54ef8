"""Addresses between state spaces and CTAs: cvta, mapa, getctarank, isspacep."""

import numpy as np

from cute_fa4.emulator.instructions.instruction_table import instruction
from cute_fa4.emulator.machine.cta import NO_RANK, OFFSET_BITS, OFFSET_MASK
from cute_fa4.emulator.machine.warp import FULL, LOCAL_BASE, PARAM_BASE, SHARED_BASE, mask_of
from cute_fa4.emulator.ptx.errors import IllegalAccess
from cute_fa4.emulator.ptx.parser import Symbol

_WINDOWS = {
    "shared": SHARED_BASE,
    "local": LOCAL_BASE,
    "param": PARAM_BASE,
    "global": 0,
    "const": 0,
}


def _window(space):
    return _WINDOWS[space.split("::")[0]]


@instruction(
    pattern=r"cvta\.(shared(?:::cta|::cluster)?|local|global|const|param(?:::entry)?)\.u(32|64)"
)
def cvta(warp, ins, match):
    """State-space address -> generic address."""
    source = ins.operands[1]
    values = warp.address(source)
    # mov of a parameter or local variable delivers a generic address already (see CTA.symbol_address).
    window = _window(match[1])
    generic = np.where(values < np.uint64(LOCAL_BASE), values + np.uint64(window), values)
    warp.write64(ins.operands[0], generic)


@instruction(
    pattern=r"cvta\.to\.(shared(?:::cta|::cluster)?|local|global|const|param(?:::entry)?)\.u(32|64)"
)
def cvta_to(warp, ins, match):
    """Generic address -> state-space address; faults when it lies in another space."""
    values = warp.address(ins.operands[1])
    window = _window(match[1])
    if window:
        chosen = values[warp.lanes]
        if ((chosen < np.uint64(window)) | (chosen > np.uint64(window + FULL))).any():
            warp.fault(
                f"{ins.opcode} of 0x{int(chosen[0]):x}, which is not in {match[1]} memory",
                IllegalAccess,
            )
        # Parameter and local addresses stay generic: loads from these spaces accept both.
        if window == SHARED_BASE:
            values = values - np.uint64(window)
    warp.write64(ins.operands[0], values)


@instruction(pattern=r"mapa(\.shared::cluster)?\.u(32|64)")
def mapa(warp, ins, match):
    """The address of the same shared variable in the CTA of another rank.

    A rank that does not exist is not an error here, because compilers hoist mapa above the branch that guards its
    use. The result is the address of no CTA; an access to it faults (Cluster.resolve).
    """
    target, source, rank = ins.operands
    values = warp.address(source)
    ranks = np.minimum(warp.read32(rank), np.uint32(NO_RANK)).astype(np.uint64)
    moved = (values & np.uint64(OFFSET_MASK)) | (ranks << np.uint64(OFFSET_BITS))
    if match[1] is None:
        moved = moved + np.uint64(SHARED_BASE)
    elif isinstance(source, Symbol):
        moved = moved & np.uint64(FULL)
    warp.write64(target, moved)


@instruction(pattern=r"getctarank(\.shared::cluster)?\.u(32|64)")
def getctarank(warp, ins, match):
    """The rank of the CTA that holds a shared address."""
    warp.write32(
        ins.operands[0],
        ((warp.address(ins.operands[1]) & np.uint64(FULL)) >> np.uint64(OFFSET_BITS)).astype(
            np.uint32
        ),
    )


@instruction(pattern=r"isspacep\.(global|shared(?:::cta|::cluster)?|local|const|param(?:::entry)?)")
def isspacep(warp, ins, match):
    """p: the generic address lies in this space."""
    values = warp.address(ins.operands[1])
    window = _window(match[1])
    if match[1] == "global":
        inside = values < np.uint64(LOCAL_BASE)
    elif match[1] == "const":
        inside = np.zeros(32, bool)
    else:
        inside = (values >= np.uint64(window)) & (values <= np.uint64(window + FULL))
        if match[1] in ("shared", "shared::cta"):
            inside &= ((values & np.uint64(FULL)) >> np.uint64(OFFSET_BITS)) == warp.cta.rank
    warp.write_pred(ins.operands[0], mask_of(inside))
