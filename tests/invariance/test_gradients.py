"""Training beside serving: the forward pass has the bits of serving, and gradients do not depend on the batch.

130 rows are two tiles of the backward pass and two key tiles of the forward pass, the second with two rows.
"""

import math

import pytest
import torch

from cute_fa4 import flash_attn_func, flash_attn_varlen_func
from cute_fa4.calls import attention, repeat
from cute_fa4.system.devices import Target, asked_for
from tests.invariance.stories import Kind, Piece, Story, drawn, offsets

KIND = Kind(heads=(2, 1))
ROWS = 130
# Kernels of the backward pass: two owners; one for all gradients, whose pairs of CTAs have 256 keys and take turns; two
# owners of wider q and k; pairs of CTAs.
CASES = {
    "64": (KIND, ROWS),
    "128": (Kind(head_dim=128, heads=(2, 1)), 300),
    "192 and 128": (Kind(head_dim=192, head_dim_v=128, heads=(2, 1)), ROWS),
    "256": (Kind(head_dim=256, heads=(2, 1)), ROWS),
}
OPTIONS = dict(causal=True, batch_invariant=True)


def leaves(*tensors) -> list[torch.Tensor]:
    return [x.detach().clone().requires_grad_() for x in tensors]


def of_packed(parts: list, which: int, dout: torch.Tensor) -> list[torch.Tensor]:
    """(out, dq, dk, dv) of one sequence of a batch; parts: (q, k, v) of each."""
    q, k, v = leaves(*(torch.cat(x) for x in zip(*parts, strict=True)))
    lengths = [len(part[0]) for part in parts]
    ends = offsets(lengths)
    out = flash_attn_varlen_func(q, k, v, ends, ends, max(lengths), max(lengths), **OPTIONS)
    rows = slice(sum(lengths[:which]), sum(lengths[: which + 1]))
    of_out = torch.randn(out.shape, generator=torch.Generator().manual_seed(len(parts))).to(
        out.dtype
    )
    of_out[rows] = dout
    found = torch.autograd.grad(out, (q, k, v), of_out)
    return [x[rows].detach() for x in (out, *found)]


@pytest.mark.parametrize("kind, rows", CASES.values(), ids=CASES.keys())
def test_gradients_of_a_sequence_do_not_depend_on_the_batch(kind, rows):
    """Alone, and between neighbours whose rows jump and hold a NaN. Calls that serve return the same out."""
    generator = torch.Generator().manual_seed(0)
    width = kind.head_dim_v or kind.head_dim
    dout = torch.randn(rows, kind.heads[0], width, generator=generator).to(kind.dtype)
    own = drawn(kind, rows, rows, generator)
    alone = of_packed([own], 0, dout)
    generator = torch.Generator().manual_seed(1)
    before, after = (drawn(kind, n, n, generator, jumps=True) for n in (70, 20))
    before[0][-1, 0] = math.nan
    together = of_packed([before, own, after], 1, dout)
    assert all(a.equal(b) for a, b in zip(alone, together, strict=True))
    story = Story(kind, *own)
    for piece in (Piece(0, rows), Piece(rows - 1, rows, "pages")):
        served, _ = story.results(piece, batch_invariant=True)
        assert served.equal(alone[0][piece.first : piece.last])


def test_the_kernel_of_training_is_that_of_serving_with_its_log_sum_exp(monkeypatch):
    monkeypatch.setattr(attention, "target_of", lambda device: Target("nothing", "sm_100a"))
    found = {}
    for name in ("training", "serving"):
        repeat.clear()
        q, k, v = (x[None] for x in drawn(KIND, ROWS, ROWS, torch.Generator().manual_seed(0)))
        q.requires_grad_(name == "training")
        with asked_for("sm_100a") as configs:
            flash_attn_func(q, k, v, **OPTIONS)
        (found[name],) = configs
    assert found["training"].write_lse and not found["serving"].write_lse
    assert found["training"].with_(write_lse=False) == found["serving"]
