"""The SM100 kernels: a problem, a family that runs it, and the parts that families share.

Read two_tiles/kernel.py first, then one_tile/kernel.py.
"""

import sys

from cute_fa4.system.moved_modules import MovedModules

MOVED = {
    "cute_fa4.sm100.config": "cute_fa4.sm100.choose.config",
    "cute_fa4.sm100.choose_config": "cute_fa4.sm100.choose.choose_config",
    "cute_fa4.sm100.masks": "cute_fa4.masks",
    "cute_fa4.sm100.score_mods": "cute_fa4.score_mods",
    "cute_fa4.sm100.mha2q": "cute_fa4.sm100.two_tiles",
    "cute_fa4.sm100.mha2q.kernel": "cute_fa4.sm100.two_tiles.kernel",
}
sys.meta_path.append(MovedModules(MOVED))
