"""`hopper check`: the kernel on a Hopper GPU against float64, and properties that must not change between launches.

    each problem        three unmodified launches, one with a quarter of the claims refused at random, and some with
                        few clusters that claim all others before they start; for a kernel without claims only
                        three launches, because its clusters would wait for seconds

    every launch        output within the bound below of float64, no NaN, rows without keys 0 with LSE -inf,
                        rows that belong to no sequence unchanged, every block run by exactly one cluster,
                        output and LSE bit-identical to the first launch's

Bounds: P and the output are rounded to 16 bits. An output is an average of values of standard deviation 1, and the
errors of P average out. Measured over all problems: 2.5e-3 of the norm with bf16, 3e-4 with fp16. With 8-bit inputs
P is e4m3, with 3 mantissa bits: the root mean square of its error is 2.4e-2, which is the error of an average of
values with mean 0. An 8-bit output adds the error of rounding the exact output.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import torch

from cute_fa4.dtypes import QUANTIZED, UNQUANTIZED
from cute_fa4.hopper import draw
from cute_fa4.hopper.calls import CANARY, Call
from cute_fa4.hopper.draw import O_SCALE
from cute_fa4.hopper.variant import Variant

LARGEST_RELATIVE_ERROR = {"bf16": 4e-3, "fp16": 6e-4} | dict.fromkeys(QUANTIZED, 4e-2)
# In 8 bits the row sum adds exponentials in f16: docs/numerics_eight_bits.md.
LARGEST_LSE_ERROR = dict.fromkeys(UNQUANTIZED, 2e-4) | dict.fromkeys(QUANTIZED, 2e-2)
# A value of a latent row times its scale is rounded to bf16, by 1.1e-3 (root mean square). 512 of them move a score
# by sqrt(512 / 576) of that, which appears in full in the LSE of a query with one key. The bound is six times that,
# for thousands of rows.
LSE_ERROR_OF_ROWS = 6e-3
GREEDY = (1, 3, 100)
GREEDY_BLOCKS = 4000
TILES_OF_ONE = 1000  # about 1.3 ms each: the limit for one cluster


class WrongResult(AssertionError):
    """A launch violated one of the rules in this module's docstring."""


@dataclass
class Row:
    """Results of one variant and problem; errors are the largest of its launches, which all agree."""

    variant: dict
    title: str
    problem: str
    sizes: dict
    launches: int = 0
    blocks: int = 0
    claimed: int = 0
    most_by_one: int = 0
    relative_error: float = 0.0
    largest_error: float = 0.0
    lse_error: float = 0.0
    seconds: float = 0.0
    laws: list = field(default_factory=list)


def check(call: Call, stand_in: Callable) -> Row:
    """Run a problem as described above. stand_in() -> the StandIn of the kernel that the call runs."""
    variant, problem = call.variant, call.problem
    row = Row(asdict(variant), variant.title, problem.title, asdict(problem))
    begin = time.perf_counter()
    out, lse = first = call.launch()
    row.seconds = time.perf_counter() - begin
    kernel = stand_in()
    launched(kernel, row)
    measure(call, out, lse, row)
    disturbed = variations(row.blocks, key_tiles(problem)) if kernel.takes_over else []
    for settings in ({}, {}, *disturbed):
        with kernel.claims(**settings):
            again = call.launch()
        launched(kernel, row)
        for name, a, b in zip(
            ("out", "lse"), written(call, *first), written(call, *again), strict=True
        ):
            if not bits(a).equal(bits(b)):
                number = int((bits(a) != bits(b)).sum())
                raise WrongResult(
                    f"{number} elements of {name} differ from the first launch's, claims: {settings}"
                )
    return row  # fmt: skip


def written(call: Call, out: torch.Tensor, lse: torch.Tensor | None) -> tuple:
    """out with its canaries, and the LSE of rows that belong to a sequence: other rows are never written."""
    if lse is None:
        return out, out[:0]
    return out, torch.cat([lse[own.at_lse].flatten() for own in call.sequences])


def variations(blocks: int, tiles: int) -> list[dict]:
    """Settings of claims for further launches with this many blocks and key tiles."""
    found = [dict(refused=0.25, seed=blocks)]
    if 1 < blocks <= GREEDY_BLOCKS:
        found += [
            dict(greedy=number)
            for number in GREEDY
            if number < blocks and tiles / number < TILES_OF_ONE
        ]
    return found


def key_tiles(problem) -> int:
    """Tiles of 256 queries and 128 keys in a launch without a mask."""
    pairs = zip(problem.queries, problem.keys, strict=True)
    return problem.heads * sum(-(-q // 256) * -(-k // 128) for q, k in pairs)


def launched(kernel, row: Row) -> None:
    """Count a launch, and check that every block ran in its own cluster or in exactly one other."""
    clusters = kernel.clusters()
    row.launches += 1
    row.blocks = max(row.blocks, len(clusters)) if row.launches == 1 else row.blocks
    claims = Counter(by for by in clusters if by >= 0)
    row.claimed += sum(claims.values())
    row.most_by_one = max(row.most_by_one, *claims.values(), 0, 0)
    if -2 in clusters:
        raise WrongResult(f"{clusters.count(-2)} of {len(clusters)} blocks did not run")


def measure(call: Call, out: torch.Tensor, lse: torch.Tensor | None, row: Row) -> None:
    """Compare with float64, sequence by sequence; WrongResult if a bound is exceeded or a canary overwritten."""
    spare = out[call.spare].float()
    overwritten = int((spare != torch.tensor(CANARY, dtype=out.dtype).item()).sum())
    if overwritten:
        raise WrongResult(f"{overwritten} elements after the last sequence were written")
    difference = exact_norm = of_rounding = 0.0
    scale = O_SCALE if call.variant.out else 1.0
    for q, k, v, at_out, at_lse in call.sequences:
        got = out[at_out].double() / scale
        got_lse = got[:0] if lse is None else lse[at_lse]
        if got.isnan().any() or got_lse.isnan().any():
            raise WrongResult(
                f"{int(got.isnan().sum())} elements of out and {int(got_lse.isnan().sum())} of lse are NaN"
            )
        for head in range(q.shape[1]):
            exact, exact_lse = attention(call.variant, q, k, v, head, call.sink)
            error = got[:, head] - exact
            difference += float(error.square().sum())
            exact_norm += float(exact.square().sum())
            if call.variant.out:
                of_rounding += float((rounded(exact, out.dtype) - exact).square().sum())
            row.largest_error = max(row.largest_error, _largest(error))
            if lse is not None:
                off = _largest(_difference(got_lse[head].double(), exact_lse))
                row.lse_error = max(row.lse_error, off)
    row.relative_error = math.sqrt(difference / exact_norm) if exact_norm else math.sqrt(difference)
    dtype = call.variant.dtype
    bound, of_lse = LARGEST_RELATIVE_ERROR[dtype], LARGEST_LSE_ERROR[dtype]
    if call.variant.cache == "rows":
        of_lse = LSE_ERROR_OF_ROWS
    if of_rounding:
        bound = math.hypot(bound, math.sqrt(of_rounding / exact_norm))
    if not row.relative_error <= bound or not row.lse_error <= of_lse:
        raise WrongResult(
            f"relative error {row.relative_error:.2e}, allowed {bound:.2e}; LSE error {row.lse_error:.2e}, "
            f"allowed {of_lse:.0e}"
        )  # fmt: skip


def rounded(exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Exact numbers rounded to an 8-bit output. This error adds to that of the kernel, and is not a constant.

    One row of 64 numbers may lose 3 percent in the norm where thousands lose 2.6.

    >>> rounded(torch.tensor([1.0, 1.07, 17.0]) / O_SCALE, torch.float8_e4m3fn) * O_SCALE
    tensor([ 1.0000,  1.1250, 16.0000])
    """
    return (exact * O_SCALE).to(dtype).to(exact.dtype) / O_SCALE


def attention(variant: Variant, q, k, v, head: int, sink, rows: int = 2048):
    """One head of a sequence by its definition in float64: (out, lse). Used only by this check."""
    kv_head = head * k.shape[1] // q.shape[1]
    q, k, v = q[:, head].double(), k[:, kv_head].double(), v[:, kv_head].double()
    outs, lses = [v[:0]], [q[:0, 0]]
    for first in range(0, len(q), rows):
        scores = q[first : first + rows] @ k.T * variant.head_dim**-0.5
        if variant.softcap:
            scores = variant.softcap * torch.tanh(scores / variant.softcap)
        queries = torch.arange(first, first + len(scores), device=q.device)[:, None]
        keys = torch.arange(len(k), device=q.device)
        hidden = ~visible(variant, queries + len(k) - len(q), keys)
        if variant.blocks:
            hidden |= ~listed(variant.blocks, head, queries, keys)
        scores = scores.masked_fill(hidden, -math.inf)
        if sink is not None:
            column = sink[head].double().expand(len(scores), 1)
            scores = torch.cat((scores, column), dim=1)
        lse = (
            torch.logsumexp(scores, dim=1)
            if scores.shape[1]
            else scores.new_full((len(scores),), -math.inf)
        )
        weights = torch.exp(scores - torch.where(lse.isneginf(), 0.0, lse)[:, None])
        outs.append(weights[:, : len(k)] @ v)
        lses.append(lse)
    return torch.cat(outs), torch.cat(lses)  # fmt: skip


def visible(variant: Variant, positions, keys):
    """The keys that are visible to a query at a position."""
    seen = torch.ones_like(positions + keys, dtype=torch.bool)
    if variant.causal:
        seen &= keys <= positions
    if variant.window:
        left, right = variant.window
        seen &= (keys >= positions - left) & (keys <= positions + right)
    if variant.chunk:
        seen &= torch.div(keys, variant.chunk, rounding_mode="floor") == torch.div(
            positions, variant.chunk, rounding_mode="floor"
        )
    return seen


def listed(blocks: tuple[int, int], head: int, queries, keys):
    """The keys that are visible to a query by draw.block_lists."""
    of_queries = torch.div(queries, blocks[0], rounding_mode="floor")
    of_keys = torch.div(keys, blocks[1], rounding_mode="floor")
    kinds = draw.kind_of_block(head, of_queries, of_keys)
    return (kinds == draw.FULL) | (kinds == draw.PARTIAL) & draw.two_thirds(0, head, queries, keys)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Numbers as integers, so that equal NaNs are equal and 0 differs from -0."""
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


def _difference(a, b):
    """a - b, and 0 where both are the same infinity."""
    return torch.where(a == b, 0.0, a - b)


def _largest(error) -> float:
    return float(error.abs().max()) if error.numel() else 0.0
