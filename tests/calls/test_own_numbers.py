"""Tensors whose memory does not hold their numbers: every tensor argument of every function refuses them by name.

A negative bit changes neither shape nor strides: a call that was made before with the plain tensor must not be taken
for the same one. Nothing is compiled.
"""

import pytest
import torch

import cute_fa4
from cute_fa4 import compile_cache, flash_mla_with_kvcache
from cute_fa4.calls import repeat
from cute_fa4.distributed import merge
from cute_fa4.integrations.sdpa import scaled_dot_product_attention
from cute_fa4.mla import write_latent_rows

E4M3 = torch.float8_e4m3fn


def rows(*sizes, dtype=torch.bfloat16) -> torch.Tensor:
    return torch.ones(sizes).to(dtype)


def int32(*values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def biased(score, batch, head, q_idx, kv_idx, aux):
    return score


def with_cache() -> dict:
    cache = {name: rows(4, 16, 1, 64) for name in ("k_cache", "v_cache")}
    table = int32(0, 1, 2, 3).view(2, 2)
    return dict(q=rows(2, 1, 2, 64), **cache, cache_seqlens=int32(3, 4), page_table=table)


def rope_call() -> dict:
    of_8 = dict(
        q=rows(2, 9, 2, 128, dtype=E4M3),
        k=rows(2, 9, 2, 128, dtype=E4M3),
        v=rows(2, 9, 2, 128, dtype=E4M3),
    )
    scales = {
        name: rows(1, dtype=torch.float32) for name in ("q_descale", "k_descale", "v_descale")
    }
    return of_8 | scales | dict(q_rope=rows(2, 9, 2, 64), k_rope=rows(2, 9, 64))  # fmt: skip


CALLS = {
    "kept": (cute_fa4.flash_attn_func, lambda: dict(
        q=rows(2, 1, 2, 64), k=rows(2, 5, 1, 64), v=rows(2, 5, 1, 64), out=rows(2, 1, 2, 64), learnable_sink=rows(2),
    )),
    "dense": (cute_fa4.flash_attn_func, lambda: dict(
        q=rows(2, 1, 2, 64), k=rows(2, 5, 1, 64), v=rows(2, 5, 1, 64), out=rows(2, 1, 2, 64),
        learnable_sink=rows(2), key_limit=int32(4, 4),
    )),
    "8 bits and rotary columns": (cute_fa4.flash_attn_varlen_func, rope_call),
    "rotary columns of 8 bits": (cute_fa4.flash_attn_varlen_func, lambda: dict(
        q=rows(2, 9, 2, 192), k=rows(2, 9, 2, 128), v=rows(2, 9, 2, 128), k_rope=rows(2, 16, 64, dtype=E4M3),
        k_rope_page_table=int32(0, 1).view(2, 1), k_rope_descale=rows(2, 16, dtype=torch.float32),
    )),
    "packed": (cute_fa4.flash_attn_varlen_func, lambda: dict(
        q=rows(6, 2, 64), k=rows(6, 1, 64), v=rows(6, 1, 64), cu_seqlens_q=int32(0, 2, 6), cu_seqlens_k=int32(0, 2, 6),
    )),
    "padded": (cute_fa4.flash_attn_varlen_func, lambda: dict(
        q=rows(2, 3, 2, 64), k=rows(2, 6, 1, 64), v=rows(2, 6, 1, 64), seqused_q=int32(1, 3), seqused_k=int32(1, 3),
    )),
    "cache": (cute_fa4.flash_attn_with_kvcache, with_cache),
    "append": (cute_fa4.flash_attn_with_kvcache, lambda: dict(
        q=rows(2, 1, 2, 64), k_cache=rows(3, 16, 1, 64), v_cache=rows(3, 16, 1, 64), k=rows(2, 1, 1, 64),
        v=rows(2, 1, 1, 64), cache_seqlens=int32(3, 4), cache_batch_idx=int32(0, 2), cache_leftpad=int32(0, 1),
    )),
    "latent": (flash_mla_with_kvcache, lambda: dict(
        q=rows(2, 1, 16, 576, dtype=E4M3), k_cache=rows(4, 16, 1, 576, dtype=E4M3), cache_seqlens=int32(3, 4),
        block_table=int32(0, 1).view(2, 1), descale_q=rows(1, dtype=torch.float32),
        descale_k=rows(1, dtype=torch.float32),
    )),
    "latent by index": (flash_mla_with_kvcache, lambda: dict(
        q=rows(2, 1, 16, 576), k_cache=rows(4, 16, 1, 576), block_table=None, cache_seqlens=None,
        indices=torch.zeros(2, 1, 8, dtype=torch.int32),
    )),
    "rows of 656 bytes": (write_latent_rows, lambda: dict(
        k_cache=torch.zeros(2, 4, 1, 656, dtype=torch.uint8), latent=rows(2, 512), rope=rows(2, 64), slots=int32(0, 1),
    )),
    "rows of 584 bytes": (write_latent_rows, lambda: dict(
        k_cache=torch.zeros(2, 2880, dtype=torch.uint8)[:, :4 * 584].view(2, 4, 1, 584), latent=rows(2, 448),
        rope=rows(2, 64), slots=int32(0, 1),
    )),
    "merge": (merge, lambda: dict(
        outs=rows(2, 1, 3, 2, 64, dtype=torch.float32), lses=rows(2, 1, 2, 3, dtype=torch.float32),
    )),
    "torch": (scaled_dot_product_attention, lambda: dict(
        query=rows(1, 2, 3, 64), key=rows(1, 2, 3, 64), value=rows(1, 2, 3, 64), attn_mask=rows(3, 3),
    )),
}  # fmt: skip
EVERY = [
    (call, name)
    for call, (_, given) in CALLS.items()
    for name, value in given().items()
    if value is not None
]


@pytest.fixture(autouse=True)
def nothing_is_launched(monkeypatch):
    monkeypatch.setattr(compile_cache, "function_for", lambda config, executor: lambda *_: None)
    repeat.clear()
    yield
    repeat.clear()


@pytest.mark.parametrize("call, name", EVERY)
def test_a_negative_bit_is_refused_by_name(call, name):
    function, made = CALLS[call]
    given = made()
    for _ in range(2):  # what is remembered of a call
        function(**given)
    other = given | {name: torch._neg_view(given[name])}
    for by_key in (False, True):
        if by_key:
            repeat._table.latest = None, None
        with pytest.raises(
            ValueError, match=rf"^{name}: has the negative bit.*call {name}\.resolve_neg\(\)"
        ):
            function(**other)


def test_tensors_of_a_function_and_zeros_without_memory():
    q, k, v = rows(1, 1, 2, 64), rows(1, 5, 1, 64), rows(1, 5, 1, 64)
    aux = torch.complex(torch.zeros(4), torch.ones(4)).conj().imag
    assert aux.is_neg()
    with pytest.raises(ValueError, match=r"^aux_tensors\[0\]: has the negative bit"):
        cute_fa4.flash_attn_func(q, k, v, score_mod=biased, aux_tensors=[aux])
    cute_fa4.flash_attn_func(q, k, v)
    with pytest.raises(
        ValueError, match=r"^v: a tensor of zeros without memory.*call v\.clone\(\)"
    ):
        cute_fa4.flash_attn_func(q, k, torch._efficientzerotensor(v.shape, dtype=v.dtype))


def test_a_graph_takes_either():
    """torch writes the numbers out before it calls an operator."""
    seen = []

    def noted(config, executor):
        return lambda *given: seen.append(given[0].clone())

    q, k, v = rows(1, 1, 2, 64), rows(1, 5, 1, 64), rows(1, 5, 1, 64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compile_cache, "function_for", noted)
        repeat.clear()
        torch.ops.cute_fa4.flash_attn(torch._neg_view(q), k, v)
    assert (seen[0] == -1).all()
