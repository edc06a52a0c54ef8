"""Calls of the lightning indexer, and their logits in float64."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch

from cute_fa4 import EmulatorWarning, emulator
from cute_fa4.indexer import fp8_mqa_logits, fp8_paged_mqa_logits
from tests.attention.agreement import IN_ORDER, Schedule

E4M3 = torch.float8_e4m3fn
CANARY = 12345.0
SMALLEST = 2.0**-24  # half of float32's relative precision


@dataclass
class Problem:
    """Queries of one or more sequences, all of the same number, and the keys of each sequence.

    sees  (batch, queries, keys) bool, filled with False to the longest sequence
    """

    q: torch.Tensor  # (batch, queries, heads, 128)
    weights: torch.Tensor  # (batch, queries, heads)
    keys: list[torch.Tensor]  # (n, 128) each
    scales: list[torch.Tensor]
    sees: torch.Tensor

    def expected(self) -> tuple[torch.Tensor, torch.Tensor]:
        """-> (logits in float64, what float32 sums may differ from them), (batch * queries, keys)."""
        batch, queries, heads, _ = self.q.shape
        logits = torch.full(self.sees.shape, -torch.inf, dtype=torch.float64)
        allowed = torch.zeros_like(logits)
        for b, (k, scale) in enumerate(zip(self.keys, self.scales, strict=True)):
            q, k, weights = self.q[b].double(), k.double(), self.weights[b].double()
            n = min(len(k), logits.shape[2])
            products = torch.einsum("qhd,kd->qhk", q, k[:n]).relu()
            most = torch.einsum("qhd,kd->qhk", q.abs(), k[:n].abs())
            logits[b, :, :n] = torch.einsum("qhk,qh->qk", products, weights) * scale[:n]
            sums = torch.einsum("qhk,qh->qk", most, weights.abs()) * scale[:n].abs()
            allowed[b, :, :n] = sums * (128 + heads + 2) * SMALLEST
        logits = logits.masked_fill(~self.sees, -torch.inf)
        return logits.flatten(0, 1), allowed.flatten(0, 1)


def draw(heads: int, queries: int, lengths: list[int], seed: int = 0) -> Problem:
    """Every query sees all keys of its sequence."""
    generator = torch.Generator().manual_seed(seed)
    batch, most = len(lengths), max(lengths, default=0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    return Problem(
        normal(batch, queries, heads, 128).to(E4M3),
        normal(batch, queries, heads),
        [normal(n, 128).to(E4M3) for n in lengths],
        [torch.rand(n, generator=generator) + 0.5 for n in lengths],
        (torch.arange(most) < torch.tensor(lengths)[:, None])[:, None].expand(-1, queries, -1),
    )


def int32(*numbers) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def emulated(function, *given, schedule: Schedule = IN_ORDER, **options):
    checks = ("ptx", "phase_passed_twice")
    with (
        warnings.catch_warnings(),
        emulator.use(mode=schedule.mode, seed=schedule.seed, checks=checks),
    ):
        warnings.simplefilter("ignore", EmulatorWarning)
        return function(*given, **options)


def dense(problem: Problem, starts, ends, schedule=IN_ORDER, **options) -> torch.Tensor:
    """fp8_mqa_logits of the first sequence."""
    kv = problem.keys[0], problem.scales[0]
    given = problem.q[0], kv, problem.weights[0], starts, ends
    return emulated(fp8_mqa_logits, *given, schedule=schedule, **options)


def seen_between(problem: Problem, starts, ends) -> torch.Tensor:
    """(1, queries, keys) of starts[i] <= j < ends[i]."""
    columns = torch.arange(len(problem.keys[0]))
    return ((columns >= starts[:, None]) & (columns < ends[:, None]))[None]


def cache_of(problem: Problem, page_size: int, spare: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    """-> (kv_cache of shuffled pages, block_table). What no key uses is NaN, or no page."""
    pages = [-(-len(k) // page_size) for k in problem.keys]
    number = sum(pages) + spare
    numbers = torch.full((number, page_size, 128), torch.nan).to(E4M3).view(torch.uint8)
    scales = torch.full((number, page_size), torch.nan)
    order = iter(torch.randperm(number, generator=torch.Generator().manual_seed(1)).tolist())
    table = torch.full((len(pages), max(pages) + 1), 2**31 - 1, dtype=torch.int32)
    for b, (k, scale) in enumerate(zip(problem.keys, problem.scales, strict=True)):
        for column in range(pages[b]):
            rows = slice(column * page_size, (column + 1) * page_size)
            n, page = len(k[rows]), next(order)
            table[b, column] = page
            numbers[page, :n] = k[rows].view(torch.uint8)
            scales[page, :n] = scale[rows]
    fused = torch.cat([numbers.flatten(1), scales.view(torch.uint8)], dim=1)
    return fused.view(number, page_size, 1, 132), table


def paged(problem: Problem, page_size: int, lengths, schedule=IN_ORDER, **options) -> torch.Tensor:
    cache, table = cache_of(problem, page_size)
    options = {"max_context_len": problem.sees.shape[2], "clean_logits": True, **options}
    given = problem.q, cache, problem.weights.flatten(0, 1), lengths, table
    return emulated(fp8_paged_mqa_logits, *given, schedule=schedule, **options)


def assert_agrees(problem: Problem, logits: torch.Tensor) -> None:
    expected, allowed = problem.expected()
    assert logits.dtype == torch.float32 and logits.shape == expected.shape
    assert torch.equal(torch.isneginf(logits), torch.isneginf(expected)), "other keys are seen"
    seen = ~torch.isneginf(expected)
    error = (logits.double() - expected).abs()
    assert (error <= allowed)[seen].all(), (error - allowed)[seen].max()
