"""The arguments that a compiled attention function takes after the scale, in a call that uses none of it."""

import inspect

from cute_fa4.sm100.kernel import SM100Kernel

NAMES = tuple(
    name
    for name in inspect.signature(SM100Kernel.__call__).parameters
    if name not in ("self", "stream")
)
AFTER_SCALE = tuple(
    0 if name == "max_seqlen_q" else None for name in NAMES[NAMES.index("softmax_scale") + 1 :]
)
