"""Check a call without making it: its checks run on tensors without data, and nothing is compiled.

    >>> from cute_fa4.calls.ask.questions import Sizes, refusal_and_families
    >>> sizes = Sizes(group=8, page_size=16, seqlen_k=4096)
    >>> given = {"page_table": True, "cache_seqlens": True, "num_splits": 0}
    >>> refusal_and_families("bf16", (128, 128), sizes, "sm_100a", given)
    (None, ('mhaswap',))
    >>> refusal_and_families("bf16", (128, 128), sizes, "sm_100a", {"cache_seqlens": True, "k": True})
    ('k, v: one of them is None; accepted: both or neither', ())

A tensor of a question counts by its shape, strides and dtype; True stands for one that fits the rest. What lengths and
pages hold is not looked at, as it is not on CUDA.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature

import torch

from cute_fa4.calls.append import (
    cache_lengths,
    prepare_append_and_attention,
    refuse_unbuilt,
    rows_of_cache,
    sequences_of,
)
from cute_fa4.calls.operands import rope as rope_tensors
from cute_fa4.calls.operands.tensors import DTYPE_NAMES, OUT_OF, ROPE_SPAN, check_tensors
from cute_fa4.calls.prepare import one_of, prepare_attention
from cute_fa4.calls.queries import Asked, are_wide, quantised_beside, stay_wide
from cute_fa4.calls.request import CallTensors, in_order
from cute_fa4.compiler import policy
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.system.devices import asked_for

TORCH_DTYPE = {name: dtype for dtype, name in DTYPE_NAMES.items()}
# Parameters that say where sequences are stored: those of both functions, and those of only one.
OF_BOTH = ("cu_seqlens_q", "page_table", "block_table", "kv_layout", "key_limit", "max_seqlen_q")
OF_CACHES = (
    *("k", "v", "cache_seqlens", "cu_seqlens_k_new", "cache_batch_idx", "cache_leftpad"),
    *("rotary_cos", "rotary_sin", "qv"),
)
OF_ROPE = rope_tensors.NAMES
OF_VARLEN = (
    *("cu_seqlens_k", "seqused_q", "seqused_k", "seqused_k_excludes_new", "max_seqlen_k"),
    *OF_ROPE,
)
OF_LENGTHS = frozenset((*OF_BOTH, *OF_CACHES, *OF_VARLEN))


@dataclass(frozen=True)
class Sizes:
    """Of the tensors that a question does not give.

    batch      None: what the first tensor of lengths or pages says, else 1
    seqlen_q   queries of a sequence, and new rows that are appended
    seqlen_k   keys for which its cache has room
    page_size  keys of a page
    kv_dtype   of k, v and caches, "e4m3" or "e5m2" under q of 16 bits; None: that of q
    """

    group: int = 1
    heads_kv: int = 1
    batch: int | None = None
    seqlen_q: int = 1
    seqlen_k: int = 4096
    page_size: int = 16
    kv_dtype: str | None = None


def function_of(names) -> str:
    """The public function that has parameters of these names, which are some of OF_LENGTHS.

    >>> function_of(["page_table", "cache_seqlens"]), function_of(["page_table", "seqused_k"])
    ('flash_attn_with_kvcache', 'flash_attn_varlen_func')
    """
    caches = [name for name in names if name in OF_CACHES]
    others = [name for name in names if name in OF_VARLEN]
    if caches and others:
        raise TypeError(
            f"{others[0]}: together with {caches[0]}; flash_attn_with_kvcache has no {', '.join(OF_VARLEN)}, and "
            f"flash_attn_varlen_func no {', '.join(OF_CACHES)}"
        )
    return "flash_attn_with_kvcache" if caches else "flash_attn_varlen_func"


def refusal_and_families(
    dtype: str, depths: tuple[int, int], sizes: Sizes, arch: str, given: dict
) -> tuple[str | None, tuple[str, ...]]:
    """-> (what such a call raises or None, families of the attention kernels that it launches).

    depths  of q and k, of v
    given   parameters of the public function by name; None is as if it were not there
    """
    given = {name: value for name, value in given.items() if value is not None}
    ask = _with_cache if function_of(given).endswith("kvcache") else _varlen
    try:
        tensors = _Tensors(TORCH_DTYPE[dtype], depths, sizes, given)
        with asked_for(arch) as configs:
            ask(tensors, **{name: tensors.of(name) for name in given})
    except (TypeError, ValueError, NotImplementedError) as error:
        return str(error), ()
    families = (c.schedule.family for c in configs if isinstance(c, FA4Config))
    return None, tuple(dict.fromkeys(families))  # V of many columns has more than one launch


class _Tensors:
    """Tensors of a call on the meta device: those of the question, and what they leave open."""

    def __init__(self, dtype: torch.dtype, depths: tuple[int, int], sizes: Sizes, given: dict):
        self.dtype, self.given, self.sizes = dtype, given, sizes
        self.of_keys = dtype if sizes.kv_dtype is None else TORCH_DTYPE[sizes.kv_dtype]
        self.depth_qk, self.depth_v = depths
        self.heads_q = sizes.group * sizes.heads_kv
        self.table = "page_table" if "page_table" in given else "block_table"
        self.batch = self._batch() if sizes.batch is None else sizes.batch

    def _batch(self) -> int:
        for name in ("cache_seqlens", "seqused_k", "cache_batch_idx", "seqused_q", self.table):
            if isinstance(self.given.get(name), torch.Tensor) and self.given[name].dim():
                return self.given[name].shape[0]
        for name in ("cu_seqlens_q", "cu_seqlens_k", "cu_seqlens_k_new"):
            if isinstance(self.given.get(name), torch.Tensor) and self.given[name].dim():
                return max(self.given[name].shape[0] - 1, 0)
        new = self.given.get("k")
        return new.shape[0] if isinstance(new, torch.Tensor) and new.dim() == 4 else 1

    def of(self, name: str):
        """The value of a parameter: a tensor for True, where it is one of sequences."""
        value = self.given[name]
        if value is True and name in _OPEN:
            return _OPEN[name](self)
        return _without_data(value)

    def empty(self, *shape, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype or self.dtype, device="meta")

    def q(self) -> torch.Tensor:
        columns = self.depth_qk - (self.rope_depth if "q_rope" in self.given else 0)
        return self._rows("cu_seqlens_q", self.sizes.seqlen_q, self.heads_q, columns)

    def q_rope(self) -> torch.Tensor:
        of_rows = "cu_seqlens_q", self.sizes.seqlen_q, self.heads_q, self.rope_depth
        return self._rows(*of_rows, dtype=self.of_rope)

    @property
    def rope_depth(self) -> int:
        """Columns of k that are in k_rope."""
        given = self.given.get("k_rope")
        if given is None:
            return 0
        if given is True and self.depth_qk <= ROPE_SPAN:
            raise ValueError(
                f"k_rope: {ROPE_SPAN} columns of head_dim={self.depth_qk}; accepted: a larger head_dim, or a tensor of "
                "fewer columns"
            )
        return ROPE_SPAN if given is True else getattr(given, "shape", (0,))[-1]

    def rope(self) -> torch.Tensor:
        if "k_rope_page_table" in self.given:
            pages = self.batch * self.pages(), self.sizes.page_size, self.rope_depth
            return self.empty(*pages, dtype=self.of_rope)
        return self._rows("cu_seqlens_k", self.sizes.seqlen_k, 1, self.rope_depth, self.of_rope)

    @property
    def of_rope(self) -> torch.dtype:
        """Of k_rope and q_rope that the question leaves open: that of q, or bf16 beside q of 8 bits with q_rope."""
        return OUT_OF[self.dtype] if "q_rope" in self.given else self.dtype

    def keys(self, depth: int) -> torch.Tensor:
        """K or V, dense, packed or a cache."""
        if self.table not in self.given:
            of_rows = "cu_seqlens_k", self.sizes.seqlen_k, self.sizes.heads_kv, depth
            return self._rows(*of_rows, self.of_keys)
        page, heads = self.sizes.page_size, self.sizes.heads_kv
        if self.given.get("kv_layout") == "HND":
            page, heads = heads, page
        return self.empty(self.batch * self.pages(), page, heads, depth, dtype=self.of_keys)

    def new_rows(self, depth: int) -> torch.Tensor:
        return self._rows("cu_seqlens_k_new", self.sizes.seqlen_q, self.sizes.heads_kv, depth)

    def pages(self) -> int:
        """Of a sequence; pages of no keys are refused, whatever there is of them."""
        page = self.sizes.page_size
        return -(-self.sizes.seqlen_k // page) if page > 0 else 1

    def _rows(self, offsets: str, seqlen: int, heads: int, depth: int, dtype=None) -> torch.Tensor:
        if offsets in self.given:
            return self.empty(self.batch * seqlen, heads, depth, dtype=dtype)
        return self.empty(self.batch, seqlen, heads, depth, dtype=dtype)

    def numbers(self, *shape) -> torch.Tensor:
        return self.empty(*shape, dtype=torch.int32)


def _lengths(more: int = 0) -> Callable:
    return lambda tensors: tensors.numbers(tensors.batch + more)


_OPEN: dict[str, Callable] = {
    **{
        name: _lengths()
        for name in ("cache_seqlens", "cache_batch_idx", "cache_leftpad", "seqused_q", "seqused_k", "key_limit")
    },
    **{name: _lengths(1) for name in ("cu_seqlens_q", "cu_seqlens_k", "cu_seqlens_k_new")},
    **{
        name: lambda tensors: tensors.numbers(tensors.batch, tensors.pages())
        for name in ("page_table", "block_table", "k_rope_page_table")
    },
    "k_rope": lambda tensors: tensors.rope(),
    "q_rope": lambda tensors: tensors.q_rope(),
    "k": lambda tensors: tensors.new_rows(tensors.depth_qk),
    "v": lambda tensors: tensors.new_rows(tensors.depth_v),
    **{
        name: lambda tensors: tensors.empty(tensors.heads_q, dtype=torch.float32)
        for name in ("learnable_sink", "s_aux")
    },
}  # fmt: skip


def _without_data(value):
    if isinstance(value, (list, tuple)):
        return type(value)(map(_without_data, value))
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def _common(
    *,
    softmax_scale=None,
    causal=False,
    window_size=(None, None),
    mask=None,
    learnable_sink=None,
    s_aux=None,
    softcap=0.0,
    max_seqlen_q=None,
    max_seqlen_k=None,
    num_splits=1,
    tokens_per_split=None,
    workspace=None,
    pack_gqa=None,
    score_mod=None,
    mask_mod=None,
    aux_tensors=None,
    block_sparse_tensors=None,
    kv_layout="NHD",
    seqused_k_excludes_new=False,
    return_lse=False,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    o_scale=None,
    q_quantize=None,
) -> tuple:
    """-> (sink, aux tensors, scales, asked) as repeat.attend takes them. workspace: a launch refuses it."""
    policy.check_quantize(q_quantize)
    numbers = softmax_scale, causal, softcap, max_seqlen_q, max_seqlen_k
    choices = (
        mask, num_splits, tokens_per_split, pack_gqa, score_mod, mask_mod, block_sparse_tensors, kv_layout,
        seqused_k_excludes_new, return_lse,
    )  # fmt: skip
    scales = (q_descale, k_descale, v_descale, o_scale)
    sink = one_of("learnable_sink", learnable_sink, "s_aux", s_aux)
    given = None if all(scale is None for scale in scales) else scales
    return sink, aux_tensors, given, (window_size, numbers, choices)


OPTIONS = frozenset(signature(_common).parameters)


def _queries(q, k, v, scales, options: dict, lengths: dict, rope=None) -> tuple:
    """-> (q, out, scales, rope) as the public functions pass them on: q of 16 bits over k of 8 may be quantised."""
    if not are_wide(q, k):
        return q, None, scales, rope
    heads = k.shape[-3 if options.get("kv_layout") == "HND" and k.dim() > 3 else -2]
    k_rope, table, q_rope, of_rope = rope or (None,) * 4
    named = lengths | options
    if stay_wide(q, Asked(heads, *map(named.get, Asked._fields[1:])), k_rope):
        return q, None, scales, rope
    q_descale, *others = scales or (None,) * 4
    q, q_rope, q_descale, out = quantised_beside(q, k, v, q_descale, None, k_rope, q_rope)
    rope = rope_tensors.given_of(k_rope, table, q_rope, of_rope)
    return q, out, (q_descale, *others), rope


def _varlen(
    tensors: _Tensors,
    *,
    page_table=None,
    block_table=None,
    **rest,
):
    rope = rope_tensors.of_arguments(rest)
    options = {name: rest.pop(name) for name in OPTIONS & set(rest)}
    sink, aux, scales, asked = _common(**options)
    table = one_of("page_table", page_table, "block_table", block_table)
    lengths = in_order(page_table=table, **rest)
    depth_k = tensors.depth_qk - tensors.rope_depth
    q, k, v = tensors.q(), tensors.keys(depth_k), tensors.keys(tensors.depth_v)
    q, out, scales, rope = _queries(q, k, v, scales, options, rest, rope)
    return prepare_attention(
        CallTensors(q, k, v, out, lengths, sink, aux, None, scales, rope), asked
    )


def _with_cache(
    tensors: _Tensors,
    *,
    k=None,
    v=None,
    cache_seqlens=None,
    cu_seqlens_k_new=None,
    page_table=None,
    block_table=None,
    rotary_cos=None,
    rotary_sin=None,
    qv=None,
    **rest,
):
    refuse_unbuilt(rotary_cos=rotary_cos, rotary_sin=rotary_sin, qv=qv)
    options = {name: rest.pop(name) for name in OPTIONS & set(rest)}
    sink, aux, scales, asked = _common(**options)
    table = one_of("page_table", page_table, "block_table", block_table)
    q, *caches = tensors.q(), tensors.keys(tensors.depth_qk), tensors.keys(tensors.depth_v)
    if cache_seqlens is k is table is None and (
        "cache_batch_idx" in rest or "cache_leftpad" in rest
    ):
        cache_seqlens = rows_of_cache(caches[0])
    if cache_seqlens is not None and not isinstance(cache_seqlens, torch.Tensor):
        check_tensors(q, *caches, None)
        cache_seqlens = cache_lengths(
            cache_seqlens, sequences_of(q, rest.get("cu_seqlens_q")), q.device
        )
    new = None if k is v is cu_seqlens_k_new is None else (k, v, cu_seqlens_k_new)
    lengths = in_order(seqused_k=cache_seqlens, page_table=table, **rest)
    q, out, scales, _ = _queries(q, *caches, scales, options, rest)
    tensors = CallTensors(q, *caches, out, lengths, sink, aux, new, scales)
    return prepare_append_and_attention(tensors, asked)
