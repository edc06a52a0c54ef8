"""The cost of 8-bit and 4-bit keys under many 16-bit queries: a 16-bit cache, dequantized caches, quantized queries.

Cycles of a key tile in the steady state of the full mask, head dims 128 and 192/128, for the 256 query rows of a CTA.
docs/generate.py writes the table from records (recorded.py).
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from benchmarks.cycle_model.evaluate import AlignedKernel, steady_state
from benchmarks.cycle_model.kernels import OURS, Variant, traced
from benchmarks.cycle_model.modelled import NAN, Model, made_by, marked
from benchmarks.cycle_model.records import Constants, Subject, records
from benchmarks.cycle_model.workloads import TILES, CacheWorkload, workload

OF_128, OF_192 = (128, 0), (192, 128)  # head dims, as Variant takes them
NAMES = {"mxe4m3": "MXFP8", "e2m1": "NVFP4"}  # of dtypes in the table


class Row(NamedTuple):
    """Dtypes of q, of k and v; keys of a page, 0: contiguous; the layout of scales of V, NVFP4's alone; head dims."""

    q: str
    cache: str
    page_size: int = 0
    layout: str = ""
    depths: tuple[int, int] = OF_128

    @property
    def is_mixed(self) -> bool:
        """K and V are dequantized."""
        return self.q != self.cache

    @property
    def variant(self) -> Variant:
        choices = [("kv_dtype", self.cache)] * self.is_mixed
        choices += [("v_block_scale_layout", self.layout)] * bool(self.layout)
        depth, depth_v = self.depths
        more = dict(page_size=self.page_size, choices=tuple(choices))
        return Variant(OURS, depth, head_dim_v=depth_v, dtype=self.q, **more)

    @property
    def words(self) -> tuple[str, str, str]:
        """Head dims, what q is, and what k and v are."""
        cache = NAMES.get(self.cache, self.cache)
        cache += f", pages of {self.page_size}" * (self.page_size > 0)
        cache += f", scales of V {self.layout}" * bool(self.layout)
        return "/".join(str(depth) for depth in self.depths if depth), self.q, cache


ROWS = (
    Row("bf16", "bf16"),
    Row("bf16", "e4m3"),
    Row("e4m3", "e4m3"),
    Row("bf16", "mxe4m3", 16),
    Row("bf16", "e2m1", 16),
    Row("bf16", "e2m1", 16, "interleaved4"),
    Row("bf16", "bf16", depths=OF_192),
    Row("bf16", "mxe4m3", 16, depths=OF_192),
    Row("bf16", "e2m1", 16, depths=OF_192),
)


def _figures(row: Row, constants: Constants) -> dict:
    works = (workload(row.variant, n) for n in TILES[-2:])
    kernel = AlignedKernel.of(
        traced(row.variant, [CacheWorkload(**vars(work), kv_dtype=row.cache) for work in works])
    )
    found = steady_state(kernel.simulate(constants))
    return {"steady": round(found.cycles, 2), "bound": found.bound}


def subject(row: Row, constants: Constants) -> Subject:
    """A kernel that no other table has: 16-bit queries over a cache that it dequantizes."""
    from benchmarks.cycle_model.our_kernel import config

    kernel = row.variant
    name = f"steady state of {kernel}"
    figures = partial(_figures, row, constants)
    return Subject(name, str(kernel), constants, figures, partial(config, kernel))


def subjects(constants: Constants) -> list[Subject]:
    return [subject(row, constants) for row in ROWS if row.is_mixed]


def table(constants: Constants, model: Model) -> str:
    """Cycles of each pair of dtypes."""
    lines = ["| head dim | q | k and v | cycles of a key tile | bound |", "|---|---|---|---|---|"]
    used = []
    for row in ROWS:
        if not row.is_mixed:
            kernel = model(row.variant, constants)
            cycles, bound = kernel.steady.cycles, kernel.steady.bound
        else:
            kernel = subject(row, constants)
            known = records().get(kernel.name, {})
            cycles, bound = known.get("steady", NAN), known.get("bound", "-")
        used.append(kernel)
        lines.append(f"| {' | '.join(row.words)} | {marked(f'{cycles:.0f}', kernel)} | {bound} |")
    return "\n".join([*lines, "", made_by(used)])
