"""The meaning of "agrees" in the attention tests: closeness to float64, with a reason for every term.

A failing case prints a line that runs it again:

    python -c "from tests.attention.agreement import *; assert_agrees(Case(...), seed=0)"
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import torch

from cute_fa4 import emulator, flash_attn_func
from cute_fa4.interface import EmulatorWarning
from cute_fa4.reference import (
    EXP2_RELATIVE_ERROR,
    FLOAT32_NOISE,
    Tolerance,
    allowed_error,
    attention_float64,
    finite_or_zero,
    max_error,
)
from tests.cases import Case

__all__ = ["ROUNDOFF", "Case", "Schedule", "assert_agrees", "attention", "reproduce", "schedules"]


class Schedule(NamedTuple):
    """How the emulator orders warps and completions: arguments of emulator.use."""

    mode: str = "in_order"
    seed: int = 0

    def __str__(self):
        return f"{self.mode}{self.seed}" if self.mode == "random" else self.mode


IN_ORDER = Schedule()


def schedules(number: int) -> list[Schedule]:
    """The first `number` of: in order, everything as late as possible, random ones."""
    random = [Schedule("random", seed) for seed in range(number)]
    return [IN_ORDER, Schedule("hostile"), *random][:number]


def attention(*tensors, schedule: Schedule = IN_ORDER, function=flash_attn_func, **options):
    """flash_attn_func, or another function; CPU tensors are executed under the schedule.

    phase_passed_twice: a barrier that completes an unobserved phase lets its waiter mistake the
    phase after the next for its own, though every schedule tried may give the right result.
    """
    on_emulator = emulator.use(
        mode=schedule.mode, seed=schedule.seed, checks=("ptx", "phase_passed_twice")
    )
    with warnings.catch_warnings(), on_emulator:
        warnings.simplefilter("ignore", EmulatorWarning)
        return function(*tensors, **options)


def assert_agrees(
    case: Case, *, seed: int = 0, device: str = "cpu", schedule: Schedule = IN_ORDER
) -> None:
    """Run the case, compare out and LSE with float64, and rows without keys with 0 and -inf."""
    print("run again:", reproduce(case, seed, schedule))
    q, k, v = case.tensors(seed, device)
    out, lse = attention(q, k, v, **case.options, return_lse=True, schedule=schedule)
    exact, exact_lse = attention_float64(q, k, v, **case.options)
    allowed = tolerance(case, q, k, v)
    assert out.dtype == q.dtype and out.shape == exact.shape
    assert lse.dtype == torch.float32 and lse.shape == exact_lse.shape
    _assert_close("lse (batch, head, row)", lse, exact_lse, allowed.lse)
    _assert_close("out (batch, row, head, depth)", out, exact, allowed.out)
    without_keys = torch.isneginf(exact_lse).transpose(1, 2)
    assert (out[without_keys] == 0).all(), "a row that sees no key is not exactly 0"


def reproduce(case: Case, seed: int, schedule: Schedule = IN_ORDER) -> str:
    """A shell line that runs this case again."""
    arguments = f"{case.code}, seed={seed}"
    if schedule != IN_ORDER:
        arguments += f", schedule=Schedule({schedule.mode!r}, {schedule.seed})"
    return f'python -c "from tests.attention.agreement import *; assert_agrees({arguments})"'


# The largest error over fewer rows than this says little about how large it may be: a row's few
# weights may happen to be numbers that bf16 holds exactly.
FEW_ROWS = 32

# Half a unit in the last place, relative: significands of 8 and 11 bits.
ROUNDOFF = {"bf16": 2.0**-8, "fp16": 2.0**-11}

# The kernel keeps an old row maximum while the new one is less than 8 log2 units above it, so P may
# be any multiple 2^lag of what it is with the final maximum. Roundings repeat with period 1 in lag.
LAGS = (0.0, 0.25, 0.5, 0.75)


def tolerance(case: Case, q, k, v) -> Tolerance:
    """Twice the error of rounding P alone, plus rounding the output and float32 noise.

    reference.allowed_error measures the former with the final row maximum, where the largest weight
    of a row is exactly 1 and costs no rounding; error_of_rounding_p also measures it with older
    maxima. The worst case is for few rows: every weight w is off by roundoff and the error of 2^x,
    relative, so out is off by at most their sum times sum(w |v|) <= sqrt(sum(w v^2)).
    """
    allowed = allowed_error(q, k, v, **case.options)
    exact, _ = attention_float64(q, k, v, **case.options)
    of_p = 2 * error_of_rounding_p(case, q, k, v)
    if case.batch * case.heads_q * case.seqlen_q < FEW_ROWS:
        squares, _ = attention_float64(q, k, v.double() ** 2, **case.options)
        worst = (ROUNDOFF[case.dtype] + EXP2_RELATIVE_ERROR) * float(squares.max().sqrt())
        of_p = max(of_p, worst)
    of_out = max_error(exact.to(q.dtype), exact)
    return Tolerance(out=max(allowed.out, of_p + of_out + FLOAT32_NOISE), lse=allowed.lse)


def error_of_rounding_p(case: Case, q, k, v) -> float:
    """Largest |out - out with P rounded to the input dtype|, everything else in float64."""
    group = case.heads_q // case.heads_kv
    largest = 0.0
    for batch in range(case.batch):
        qb, kb, vb = (x[batch].double().transpose(0, 1) for x in (q, k, v))
        kb, vb = kb.repeat_interleave(group, dim=0), vb.repeat_interleave(group, dim=0)
        scale = case.head_dim**-0.5 if case.softmax_scale is None else case.softmax_scale
        s = qb @ kb.transpose(1, 2) * scale
        if case.causal:
            ones = torch.ones_like(s[0], dtype=torch.bool)
            hidden = ones.triu(1 + case.seqlen_k - case.seqlen_q)
            s = s.masked_fill(hidden, -torch.inf)
        p = torch.exp(s - finite_or_zero(s.amax(dim=-1, keepdim=True)))
        row_sum = p.sum(dim=-1, keepdim=True)
        for lag in LAGS:
            lagging = p * 2.0**lag
            off = (lagging.to(q.dtype).double() - lagging) @ vb / (row_sum * 2.0**lag)
            largest = max(largest, float(off.nan_to_num(0.0).abs().max()))
    return largest


def _assert_close(what: str, actual, exact, allowed: float) -> None:
    error = max_error(actual, exact)
    if error <= allowed:
        return
    wrong = ~((actual.double() - exact).abs() <= allowed) & (actual.double() != exact)
    first = tuple(wrong.nonzero()[0].tolist())
    raise AssertionError(
        f"{what}: error {error:.3g}, allowed {allowed:.3g}; {int(wrong.sum())} of {wrong.numel()} "
        f"values are off, the first at {first}: {actual[first]:.6g} instead of {exact[first]:.6g}"
    )
