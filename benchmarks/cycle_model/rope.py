"""What k_rope costs: 192/128 with K concatenated, and with its rotary columns in a tensor of their own.

    python -m benchmarks.cycle_model.rope

Cycles of a key tile in the steady state of the full mask, for the 256 query rows of a CTA (of 8 bits, of two CTAs).
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.cycle_model.constants import fitted_b200
from benchmarks.cycle_model.evaluate import AlignedKernel, steady_state
from benchmarks.cycle_model.kernels import OURS, Variant, traced
from benchmarks.cycle_model.workloads import (
    ROPE_DEPTH,
    ROWS_A_CTA,
    TILES,
    RopeWorkload,
    workload,
)

DEPTHS = (192, 128)


def steady(rope_dtype: str, constants: dict, pairs: bool = False, dtype: str = "bf16"):
    """-> (family, query rows of a CTA, steady state); rope_dtype "": K has all columns. dtype: of the others."""
    from benchmarks.cycle_model.our_kernel import config

    choices = (("rope_depth", ROPE_DEPTH),) if rope_dtype else ()
    if rope_dtype not in ("", dtype):
        choices += (("rope_dtype", rope_dtype),)
    variant = Variant(
        OURS, DEPTHS[0], head_dim_v=DEPTHS[1], pairs=pairs, choices=choices, dtype=dtype
    )
    works = [workload(variant, n) for n in TILES[-2:]]
    if rope_dtype:
        works = [RopeWorkload(**vars(work), rope_dtype=rope_dtype) for work in works]
    tiles = config(variant).tiles
    works = [replace(work, seqlen_q=tiles.BM * tiles.cta_group) for work in works]
    kernel = AlignedKernel.of(traced(variant, works))
    return config(variant).schedule.family, tiles.BM, steady_state(kernel.simulate(constants))


def main() -> None:
    constants = fitted_b200()
    for rope_dtype, pairs, dtype in (
        ("", False, "bf16"),
        ("bf16", False, "bf16"),
        ("", True, "bf16"),
        ("bf16", True, "bf16"),
        ("e4m3", False, "bf16"),
        ("bf16", False, "e4m3"),
    ):
        family, rows, found = steady(rope_dtype, constants, pairs, dtype)
        cycles = found.cycles * ROWS_A_CTA / rows
        print(
            f"{family:8} {dtype} k_rope {rope_dtype or '-':5} {cycles:6.0f} cycles, {found.bound}",
            flush=True,
        )


if __name__ == "__main__":
    main()
