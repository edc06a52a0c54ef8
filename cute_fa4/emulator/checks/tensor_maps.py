"""Tensor maps in global memory that the kernel has modified: may TMA use them?

    changed()   tensormap.replace, tensormap.cp_fenceproxy     a new version; cp_fenceproxy releases it, too
    fence()     fence.proxy.tensormap::generic                 .release: all changes;  .acquire: one map, for this CTA
    check()     a copy uses a map                              ProxyError, unless released and acquired

TMA reads maps through a separate proxy. PTX ISA, "membar/fence: proxy", "tensormap.cp_fenceproxy".
"""

from dataclasses import dataclass, field

from cute_fa4.emulator.ptx.errors import ProxyError


@dataclass
class MapState:
    """The state of one modified map in global memory.

    version  number of changes     released  the last one is     acquired  CTA -> version that it has acquired
    """

    version: int = 0
    released: bool = False
    acquired: dict = field(default_factory=dict)


def changed(warp, address, released):
    """The map at a global address has changed."""
    state = warp.cta.machine.tensor_maps.setdefault(address, MapState())
    state.version += 1
    state.released = released


def fence(warp, ins):
    """fence.proxy.tensormap::generic.release / .acquire [map], 128."""
    states = warp.cta.machine.tensor_maps
    if "release" in ins.opcode.split("."):
        for state in states.values():
            state.released = True
        return
    for lane in warp.lanes[:1]:
        state = states.get(int(warp.address(ins.operands[0])[lane]))
        if state is not None:
            state.acquired[warp.cta] = state.version


def check(warp, address):
    """A copy uses the map at a global address: ProxyError unless its last change was released and acquired."""
    state = warp.cta.machine.tensor_maps.get(address)
    if state is None or warp.cta.machine.ordering is None:
        return
    if not state.released:
        warp.fault(
            f"the tensor map at 0x{address:x} was changed, and fence.proxy.tensormap::generic.release (or "
            "tensormap.cp_fenceproxy) has not followed: TMA may use the map before the change",
            ProxyError,
        )
    if state.acquired.get(warp.cta) != state.version:
        warp.fault(
            f"the tensor map at 0x{address:x} was changed, and this CTA has not executed "
            "fence.proxy.tensormap::generic.acquire on it since: TMA may use the map before the change",
            ProxyError,
        )
