"""Pairs of CTAs beside single ones, as calls get them, in the steady state of the full mask (docs/decisions/0013).

    python -m benchmarks.cycle_model.pairs [head dims, 128 64 by default]

A few traces of kernels compiled now, nothing is cached: about a minute a kernel.
"""

from __future__ import annotations

import sys

from benchmarks.cycle_model import kernels
from benchmarks.cycle_model.constants import fitted_b200
from benchmarks.cycle_model.evaluate import AlignedKernel, SteadyState, steady_state
from benchmarks.cycle_model.kernels import OURS, Variant
from benchmarks.cycle_model.workloads import TILES, workload

HEAD_DIMS = (128, 64)


def steady(variant: Variant) -> SteadyState:
    """The steady state of a kernel, from its two longest work tiles."""
    works = [workload(variant, tiles) for tiles in TILES[-2:]]
    kernel = AlignedKernel.of(kernels.traced(variant, works))
    return steady_state(kernel.simulate(fitted_b200()))


def row(head_dim: int) -> str:
    """Cycles of a key tile, and of them those of tensor core and copies, single and in pairs."""
    cells = [str(head_dim)]
    for pairs in (False, True):
        found = steady(Variant(OURS, head_dim, pairs=pairs))
        busy = (round(found.busy[name] * found.cycles) for name in ("tensor", "copies"))
        cells += [str(round(found.cycles)), *map(str, busy), found.bound]
    return "| " + " | ".join(cells) + " |"


def main(head_dims) -> int:
    print("| head dim | single CTAs | tensor | copies | bound | pairs | tensor | copies | bound |")
    print("|---" * 9 + "|")
    for head_dim in head_dims:
        print(row(head_dim), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main([int(word) for word in sys.argv[1:]] or HEAD_DIMS))
