"""The cost of 8-bit and 4-bit keys under many 16-bit queries: a 16-bit cache, dequantized caches, quantized queries.

    python -m benchmarks.cycle_model.dequantized

Cycles of a key tile in the steady state of the full mask, for the query rows of a CTA.
"""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.cycle_model.evaluate import AlignedKernel, SteadyState, steady_state
from benchmarks.cycle_model.kernels import OURS, Variant, traced
from benchmarks.cycle_model.workloads import TILES, CacheWorkload, workload
from cute_fa4.emulator.model.constants import fitted_b200


class Row(NamedTuple):
    """dtype of q; kv_dtype of k and v; head dims of k and of v (0: that of k); keys of a page, 0: contiguous."""

    dtype: str
    kv_dtype: str
    depth: int = 128
    depth_v: int = 0
    page_size: int = 0
    interleaved: bool = False

    def __str__(self):
        what = f"q {self.dtype}, cache {self.kv_dtype}, d={self.depth}"
        what += f"/{self.depth_v}" * (self.depth_v > 0) + f", pages of {self.page_size}" * (
            self.page_size > 0
        )
        return what + ", interleaved4" * self.interleaved


OF_BITS = (Row("bf16", "bf16"), Row("bf16", "e4m3"), Row("e4m3", "e4m3"))
OF_PAGES = tuple(
    Row("bf16", kv_dtype, page_size=16) for kv_dtype in ("bf16", "e4m3", "mxe4m3", "e2m1")
)
ROWS = (*OF_BITS, *OF_PAGES, Row("bf16", "e2m1", page_size=16, interleaved=True))


def steady(row: Row, constants: dict) -> tuple[str, int, SteadyState]:
    """-> (family, query rows of a CTA, steady state)."""
    from benchmarks.cycle_model.our_kernel import config

    mixed, choices = row.dtype != row.kv_dtype, {}
    if mixed:
        choices["kv_dtype"] = row.kv_dtype
    if row.interleaved:
        choices["v_block_scale_layout"] = "interleaved4"
    variant = Variant(
        OURS, row.depth, head_dim_v=row.depth_v, dtype=row.dtype, page_size=row.page_size,
        choices=tuple(choices.items()),
    )  # fmt: skip
    works = [workload(variant, n) for n in TILES[-2:]]
    if mixed:
        works = [CacheWorkload(**vars(work), kv_dtype=row.kv_dtype) for work in works]
    cfg = config(variant)
    kernel = AlignedKernel.of(traced(variant, works))
    return cfg.schedule.family, cfg.tiles.BM, steady_state(kernel.simulate(constants))


def main() -> None:
    constants = fitted_b200()
    for row in ROWS:
        family, rows, found = steady(row, constants)
        busy = ", ".join(f"{name} {share:.2f}" for name, share in found.busy.items())
        print(
            f"{family:12} {row}: {found.cycles:5.0f} cycles of {rows} rows, {found.bound}; {busy}",
            flush=True,
        )


if __name__ == "__main__":
    main()
