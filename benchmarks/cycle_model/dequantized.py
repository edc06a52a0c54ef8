"""The cost of 8-bit keys under many 16-bit queries: a 16-bit cache, an 8-bit cache, and quantized queries.

    python -m benchmarks.cycle_model.dequantized

Cycles of a key tile in the steady state of the full mask, head dim 128, for the 256 query rows of a CTA.
"""

from __future__ import annotations

from benchmarks.cycle_model.evaluate import AlignedKernel, steady_state
from benchmarks.cycle_model.kernels import OURS, Variant, traced
from benchmarks.cycle_model.workloads import ROWS_A_CTA, TILES, CacheWorkload, workload
from cute_fa4.emulator.model.constants import fitted_b200

DEPTH = 128
ROWS = (("bf16", "bf16"), ("bf16", "e4m3"), ("e4m3", "e4m3"))  # dtypes of q, of k and v


def steady(dtype: str, kv_dtype: str, constants: dict):
    """-> (family, steady state); the arguments are those of ROWS."""
    from benchmarks.cycle_model.our_kernel import config

    mixed = dtype != kv_dtype
    variant = Variant(OURS, DEPTH, dtype=dtype, choices=(("kv_dtype", kv_dtype),) if mixed else ())
    works = [workload(variant, n) for n in TILES[-2:]]
    if mixed:
        works = [CacheWorkload(**vars(work), kv_dtype=kv_dtype) for work in works]
    tiles = config(variant).tiles
    assert tiles.BM == ROWS_A_CTA
    kernel = AlignedKernel.of(traced(variant, works))
    return config(variant).schedule.family, steady_state(kernel.simulate(constants))


def main() -> None:
    constants = fitted_b200()
    for dtype, kv_dtype in ROWS:
        family, found = steady(dtype, kv_dtype, constants)
        print(
            f"{family:10} q {dtype}, cache {kv_dtype}: {found.cycles:5.0f} cycles, {found.bound}",
            flush=True,
        )


if __name__ == "__main__":
    main()
