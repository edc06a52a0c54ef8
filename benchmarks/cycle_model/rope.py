"""The cost of k_rope: 192/128 and 96/64, with concatenated K, and with RoPE columns in a separate tensor.

    python -m benchmarks.cycle_model.rope [numbers of ROWS]

Cycles of a key tile in the steady state of the full mask, for the 256 query rows of a CTA (of 8 bits, of two CTAs).
"""

from __future__ import annotations

import sys
from dataclasses import replace

from benchmarks.cycle_model.evaluate import AlignedKernel, steady_state
from benchmarks.cycle_model.kernels import OURS, Variant, traced
from benchmarks.cycle_model.workloads import (
    ROWS_A_CTA,
    TILES,
    RopeWorkload,
    workload,
)
from cute_fa4.emulator.model.constants import fitted_b200

LONG, SHORT = (128, 64, 128), (64, 32, 64)  # columns of K of a head, of all heads, of V
ROWS = (  # columns, dtype of q, k and v, of k_rope ("": K has all columns), pairs of CTAs
    (LONG, "bf16", "", False),
    (LONG, "bf16", "bf16", False),
    (LONG, "bf16", "", True),
    (LONG, "bf16", "bf16", True),
    (LONG, "bf16", "e4m3", False),
    (LONG, "e4m3", "bf16", False),
    (LONG, "e4m3", "bf16", True),
    (LONG, "e4m3", "e4m3", False),
    (SHORT, "bf16", "bf16", False),
    (SHORT, "e4m3", "bf16", False),
    ((256, 0, 128), "e4m3", "", False),  # one of two launches for V of 256
)


def steady(depths: tuple, dtype: str, rope_dtype: str, pairs: bool, constants: dict):
    """-> (family, query rows of a CTA, steady state); the arguments are those of ROWS."""
    from benchmarks.cycle_model.our_kernel import config

    own, shared, of_v = depths
    choices = (("rope_depth", shared),) if rope_dtype else ()
    if rope_dtype not in ("", dtype):
        choices += (("rope_dtype", rope_dtype),)
    of_all = own + shared, 0 if own + shared == of_v else of_v
    variant = Variant(
        OURS, of_all[0], head_dim_v=of_all[1], pairs=pairs, choices=choices, dtype=dtype
    )
    works = [workload(variant, n) for n in TILES[-2:]]
    if rope_dtype:
        of_rope = {"rope_dtype": rope_dtype, "rope_depth": shared}
        works = [RopeWorkload(**vars(work), **of_rope) for work in works]
    tiles = config(variant).tiles
    works = [replace(work, seqlen_q=tiles.BM * tiles.cta_group) for work in works]
    kernel = AlignedKernel.of(traced(variant, works))
    return config(variant).schedule.family, tiles.BM, steady_state(kernel.simulate(constants))


def main() -> None:
    constants = fitted_b200()
    chosen = [ROWS[int(n)] for n in sys.argv[1:]] or ROWS
    for depths, dtype, rope_dtype, pairs in chosen:
        family, rows, found = steady(depths, dtype, rope_dtype, pairs, constants)
        cycles = found.cycles * ROWS_A_CTA / rows
        print(
            f"{family:8} {depths} {dtype} k_rope {rope_dtype or '-':5} {cycles:6.0f} cycles, {found.bound}",
            flush=True,
        )


if __name__ == "__main__":
    main()
