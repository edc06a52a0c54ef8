"""Fences: PTX ISA, "membar, fence". Effects of the emulator are visible at once; only the ordering checks use them."""

from cute_fa4.emulator.checks import tensor_maps
from cute_fa4.emulator.checks.scopes import GPU, written_scope
from cute_fa4.emulator.instructions.instruction_table import instruction


@instruction(pattern=r"(?:fence|membar)(?:\.[\w:]+)*")
def fence(warp, ins, match):
    """Effects of the emulator are visible immediately; only the ordering checks use fences."""
    order = warp.cta.machine.ordering
    if order is None:
        return
    words = ins.opcode.split(".")
    if words[:3] == ["fence", "proxy", "tensormap::generic"]:
        tensor_maps.fence(warp, ins)
        return
    if words[:2] == ["fence", "mbarrier_init"]:
        order.fence_barriers(warp)
    elif words[:2] == ["fence", "proxy"]:
        if words[2].startswith("async"):
            is_global, shared = "global" in words, any(w.startswith("shared") for w in words)
            both = is_global == shared
            order.fence_proxy(warp, shared or both, is_global or both)
    else:
        scope = written_scope(ins.opcode)
        publishes, learns = "acquire" not in words, "release" not in words
        order.fence(warp, GPU if scope is None else scope, publishes, learns)
