"""flash_attn_backward_out: gradients that are written to tensors of the caller, or added to float32 sums."""

import math
from functools import partial

import pytest
import torch

from cute_fa4 import flash_attn_func, flash_attn_varlen_func
from tests.operators.test_gradients import qkv

OUT = partial(torch.ops.cute_fa4.flash_attn_backward_out, softmax_scale=0.125, mask="Causal()")
NEW = partial(torch.ops.cute_fa4.flash_attn_backward, softmax_scale=0.125, mask="Causal()")


def problem(rows: int = 130, seed: int = 0) -> list[torch.Tensor]:
    """dout, q, k, v, out, lse; 130 rows: a second tile."""
    *tensors, dout = (x.detach() for x in qkv(1, rows, seed=seed))
    return [dout, *tensors, *flash_attn_func(*tensors, causal=True, return_lse=True)]


def fused(rows: int, dtype, value: float) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The gradient of a projection to q, k and v in one tensor, and its three views."""
    whole = torch.full((1, rows, 4 + 2 + 2, 64), value, dtype=dtype)
    return whole, list(whole.split((4, 2, 2), dim=2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gradients_are_written_to_views_of_the_caller(dtype):
    given = problem()
    whole, views = fused(130, dtype, math.nan)
    dsink = OUT(*given, dq=views[0], dk=views[1], dv=views[2])
    *wanted, _ = NEW(*given, in_float32=dtype is torch.float32)
    assert dsink.numel() == 0 and whole.equal(torch.cat(wanted, dim=2))


def test_two_micro_batches_are_added_as_float32_adds_them():
    first, second = problem(seed=0), problem(seed=1)
    whole, views = fused(130, torch.float32, 1.0)
    for given in (first, second):
        OUT(*given, dq=views[0], dk=views[1], dv=views[2], accumulate=True)
    parts = [torch.cat(NEW(*given, in_float32=True)[:3], dim=2) for given in (first, second)]
    assert whole.equal(1.0 + parts[0] + parts[1])


def test_rows_of_no_sequence_keep_their_sums_and_are_zero_otherwise():
    """Sequences of 130 and 20 rows, and 10 rows after them."""
    *tensors, dout = (x.detach() for x in qkv(160))
    offsets = torch.tensor([0, 130, 150], dtype=torch.int32)
    lengths = dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), offsets)
    lengths |= dict.fromkeys(("max_seqlen_q", "max_seqlen_k"), 130)
    forward = flash_attn_varlen_func(*tensors, **lengths, causal=True, return_lse=True)
    given = dout, *tensors, *forward
    *wanted, _ = NEW(*given, **lengths, in_float32=True)
    for accumulate, base in ((True, 1.0), (False, 0.0)):
        sums = [torch.ones(x.shape) for x in tensors]
        OUT(
            *given,
            **lengths,
            **dict(zip(("dq", "dk", "dv"), sums, strict=True)),
            accumulate=accumulate,
        )
        for x, y in zip(sums, wanted, strict=True):
            assert x.equal(base + y) and (x[150:] == base).all()


def test_padded_gradients_and_that_of_a_sink():
    """130 and 7 rows of 130: rows of padding are zero."""
    *tensors, dout = (x.detach() for x in qkv(2, 130))
    used = torch.tensor([130, 7], dtype=torch.int32)
    options = dict(seqused_q=used, seqused_k=used, learnable_sink=torch.zeros(4))
    forward = flash_attn_varlen_func(*tensors, **options, causal=True, return_lse=True)
    written = [torch.full_like(x, math.nan) for x in tensors]
    dq, dk, dv = written
    dsink = OUT(dout, *tensors, *forward, **options, dq=dq, dk=dk, dv=dv)
    for x, y in zip((*written, dsink), NEW(dout, *tensors, *forward, **options), strict=True):
        assert x.equal(y)


def test_a_compiled_function_writes_to_its_argument():
    given = problem(20)

    def step(sums, *given):
        sums = sums.clone()
        dq, dk, dv = sums.split((4, 2, 2), dim=2)
        dq, dk, dv = (x.contiguous() for x in (dq, dk, dv))
        OUT(*given, dq=dq, dk=dk, dv=dv, accumulate=True)
        return torch.cat((dq, dk, dv), dim=2)

    sums = torch.ones(1, 20, 8, 64)
    expected = step(sums, *given)
    assert torch.compile(step, fullgraph=True, backend="aot_eager")(sums, *given).equal(expected)
    assert not expected.equal(sums)


REFUSED = {
    "a dtype to add to": (
        dict(dtype=torch.bfloat16),
        "^dq, dk, dv: torch.bfloat16.*accumulate=True",
    ),
    "a shape": (dict(rows=9), "^dq: shape .*accepted: .*as q"),
    "a last stride": (dict(turned=True), "^dq: strides .*head_dim has stride 4"),
    "one place for two": (dict(twice=True), "^dv: shares memory with dk, and both are written"),
    "the place of an input": (dict(over="dout"), "^dout: shares memory with dq, which is written"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_written_is_refused_by_name(what):
    made, message = REFUSED[what]
    made = dict(dtype=torch.float32, rows=10, turned=False, twice=False, over=None) | made
    _, (dq, dk, dv) = fused(made["rows"], made["dtype"], 0.0)
    if made["turned"]:
        dq = torch.zeros(1, 10, 64, 4).mT
    given = problem(10)
    if made["twice"]:
        dv = dk
    if made["over"]:
        memory = torch.zeros(1, 10, 8, 64, dtype=torch.bfloat16)
        dq, given[0] = memory.view(torch.float32).view(1, 10, 4, 64), memory[:, :, :4]
    with pytest.raises((ValueError, TypeError), match=message):
        OUT(*given, dq=dq, dk=dk, dv=dv, accumulate=True)
