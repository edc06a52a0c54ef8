"""Written tensors share no memory with other tensors of the call: every pair, in first and in repeated calls."""

from __future__ import annotations

import re

import pytest
import torch

from cute_fa4 import flash_attn_func, flash_attn_with_kvcache
from tests.serving.batches import int32

ROOM = 1 << 16  # elements of a storage that hold any tensor of a call twice
PAGE, PAGES = 16, 6


def roomy(shape, dtype=torch.bfloat16):
    """A contiguous tensor of zeros in the middle of a storage that has room on both sides."""
    size = torch.Size(shape).numel()
    return torch.zeros(3 * ROOM, dtype=dtype)[ROOM : ROOM + size].view(shape)


def good_call(paged: bool) -> dict:
    """An append with every optional tensor; the caches are slices of one tensor, side by side."""
    blocks, rows = (PAGES, PAGE) if paged else (2, 48)
    both = roomy((blocks, 2, rows, 1, 64))
    call = dict(
        q=roomy((2, 1, 2, 64)),
        k_cache=both[:, 0],
        v_cache=both[:, 1],
        k=roomy((2, 1, 1, 64)),
        v=roomy((2, 1, 1, 64)),
        cache_seqlens=roomy((2,), torch.int32).copy_(int32([3, 20])),
        key_limit=roomy((2,), torch.int32).fill_(100),
        learnable_sink=roomy((2,)),
        out=roomy((2, 1, 2, 64)),
    )
    if paged:
        call["page_table"] = roomy((2, 4), torch.int32).copy_(
            int32([0, 1, 2, 0, 3, 4, 5, 0]).view(2, 4)
        )
    return call


def upon(other: torch.Tensor, written: torch.Tensor) -> torch.Tensor:
    """A tensor like `other`, with its values, that begins in the last 16 bytes of `written`, as TMA wants."""
    extent = 1 + sum((n - 1) * s for n, s in zip(written.shape, written.stride(), strict=True))
    last = (written.storage_offset() + extent) * written.element_size() // 16 * 16 - 16
    moved = torch.empty(0, dtype=other.dtype).set_(
        written.untyped_storage(), last // other.element_size(), other.shape, other.stride()
    )
    return moved.copy_(other.clone())


PAIRS = [
    (written, other)
    for written in ("k_cache", "v_cache", "out")
    for other in (
        *("q", "k", "v", "k_cache", "v_cache", "out", "cache_seqlens", "key_limit"),
        *("page_table", "learnable_sink"),
    )
    if written != other and {written, other} != {"k_cache", "v_cache"}
]


@pytest.fixture
def launches(monkeypatch):
    """Launches of stand-ins for the kernels, on CPU tensors whose contents are not looked at, as on CUDA."""
    seen = []
    for place in ("attention", "append"):
        monkeypatch.setattr(
            f"cute_fa4.calls.{place}.function_for",
            lambda config, target: lambda *arguments: seen.append(config),
        )
    monkeypatch.setattr("cute_fa4.calls.attention._decided_by_contents", lambda *_: False)
    monkeypatch.setattr("cute_fa4.calls.operands.lengths.check_contents", lambda *_: None)
    monkeypatch.setattr("cute_fa4.calls.operands.new_rows._check_append_contents", lambda *_: None)
    return seen


def refused(call, *names):
    with pytest.raises(ValueError) as error:
        flash_attn_with_kvcache(**call)
    text = str(error.value)
    assert "shares memory" in text and "accepted: memory of its own" in text
    for name in names:
        assert re.search(rf"\b{name}\b", text), text


@pytest.mark.parametrize("paged", [False, True], ids=["dense", "paged"])
@pytest.mark.parametrize("written, other", PAIRS, ids=lambda name: name)
def test_a_pair_that_shares_one_element_is_refused_by_name(written, other, paged, launches):
    call = good_call(paged)
    if other not in call:
        pytest.skip("no page table in a dense cache")
    flash_attn_with_kvcache(**call)
    assert len(launches) == 2  # both kernels
    bad = call | {other: upon(call[other], call[written])}
    for _ in range(2):  # with the plan of the good call, too
        refused(bad, written, other)
    assert len(launches) == 2


@pytest.mark.parametrize("paged", [False, True], ids=["dense", "paged"])
def test_one_tensor_as_both_caches_is_refused(paged, launches):
    call = good_call(paged)
    flash_attn_with_kvcache(**call)
    for shifted in (call["k_cache"], upon(call["v_cache"], call["k_cache"])):
        refused(call | dict(v_cache=shifted), "k_cache", "v_cache")
    # Side by side at another distance: the same metadata, and as good.
    apart = roomy((call["k_cache"].shape[0], 3, *call["k_cache"].shape[1:]))
    flash_attn_with_kvcache(**call | dict(k_cache=apart[:, 0], v_cache=apart[:, 2]))


def test_a_cache_that_lies_upon_itself_is_refused(launches):
    call = good_call(paged=False)
    folded = call["k_cache"][:1].expand(2, -1, -1, -1)
    with pytest.raises(ValueError, match="k_cache: strides .* several elements at one address"):
        flash_attn_with_kvcache(**call | dict(k_cache=folded))


BF16 = dict(dtype=torch.bfloat16)
LAYOUTS = {
    "one after the other": lambda: tuple(torch.zeros(2, PAGES, PAGE, 1, 64, **BF16)),
    "beside in a page": lambda: torch.zeros(PAGES, 2, PAGE, 1, 64, **BF16).unbind(1),
    "beside in a row": lambda: torch.zeros(PAGES, PAGE, 2, 1, 64, **BF16).unbind(2),
    "beside in a head": lambda: torch.zeros(PAGES, PAGE, 1, 128, **BF16).split(64, -1),
    "of one layer of many": lambda: torch.zeros(PAGES, 3, 2, PAGE, 1, 64, **BF16)[:, 1].unbind(1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_caches_side_by_side_in_one_tensor_are_accepted(layout, launches):
    k_cache, v_cache = LAYOUTS[layout]()
    call = good_call(paged=True) | dict(k_cache=k_cache, v_cache=v_cache)
    for _ in range(2):
        flash_attn_with_kvcache(**call)
    assert len(launches) == 4


@pytest.mark.parametrize("other", ["key_limit", "learnable_sink", "aux_tensors[0]"])
def test_out_upon_what_a_call_without_new_rows_reads(other, launches):
    def score_mod(score, batch, head, q_idx, kv_idx, aux):
        return score

    q, k, v, out = (roomy((2, 4, 1, 64)) for _ in range(4))
    small = {
        "key_limit": roomy((2,), torch.int32),
        "learnable_sink": roomy((1,)),
        "aux_tensors[0]": roomy((2, 4)),
    }
    for bad in (False, True, True):
        given = small | ({other: upon(small[other], out)} if bad else {})
        call = dict(key_limit=given["key_limit"], learnable_sink=given["learnable_sink"], out=out)
        if other.startswith("aux"):
            call |= dict(score_mod=score_mod, aux_tensors=[given["aux_tensors[0]"]])
        if not bad:
            flash_attn_func(q, k, v, **call)
            continue
        with pytest.raises(ValueError, match=f"^{re.escape(other)}: shares memory with out"):
            flash_attn_func(q, k, v, **call)
    assert len(launches) == 1
