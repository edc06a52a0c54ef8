"""Queries of 16 bits over keys and values of 8: taken as they are, or quantised before the call.

    q_quantize    rows of a key/value head
    "never"       any           the kernel dequantizes keys and values (dequantized/ of sm100/few_rows, two_tiles and
                                wide): nothing is lost
    "auto"        up to 32      the same, with head dims up to 128 and without k_rope
                  more          quantised, with one scale for each query and head
    None          as "never" with tokens_per_split, and where lengths of queries differ, if a kernel runs it so; else
                  as "auto". CUTE_FA4_FP8_QUERIES says otherwise

    q_descale[row] = max |q[row]| / largest e4m3 or e5m2,    q8[row] = round(q[row] / q_descale[row])

Columns of q that meet a k_rope of 16 bits keep theirs, divided by the scale of the row (docs/decisions/0028).
For flash_mla_with_kvcache policy.stays_over_latent decides.

A row's largest number keeps all bits that the dtype has, whatever the other rows hold, and the softmax thread that owns
the row multiplies its scores by its scale. q is left with three mantissa bits (e5m2: two), as keys and values are. It
is torch's arithmetic on the tensors of the call, on its stream, without synchronising. The longest sequence of a call
decides for all of it, so that with "auto" the error of a row depends on the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from cute_fa4.calls.asked import length_may_choose
from cute_fa4.calls.operands.four_bits import has_mx_blocks
from cute_fa4.calls.operands.scale_views import is_by_row
from cute_fa4.calls.operands.scales import check_no_scale
from cute_fa4.calls.operands.tensors import (
    DTYPE_NAMES,
    FP8,
    WIDE,
    check_is_tensor,
    check_no_gradient,
)
from cute_fa4.compiler import policy
from cute_fa4.dtypes import BF16, E4M3
from cute_fa4.operands import LENGTHS_OF_QUERIES
from cute_fa4.sm100.blueprint.reach import QK_DEPTHS_OF_FP8, in_words
from cute_fa4.sm100.blueprint.rope_columns import may_be_beside_dequantized
from cute_fa4.sm100.choose.rows_of_tiles import (
    DEQUANTIZED_DEPTH,
    SPAN,
    SWAPPED_ROWS,
    dequantizes_rows,
    dequantizes_units,
)
from cute_fa4.sm100.choose.which_kernel import Call, which_kernel
from cute_fa4.sm100.few_rows.dequantized.schedule import DequantizedTile

LARGEST_BESIDE = (
    2.0**15
)  # of columns of q that keep 16 bits, divided by the scale of their row: fp16 holds it


def are_wide(q, k, k_block_scale=None) -> bool:
    """Whether q has 16 bits over keys of 8 and may be quantized: over an MXFP8 cache it never is."""
    wide = getattr(k, "dtype", None) in FP8 and getattr(q, "dtype", None) in WIDE
    return wide and not has_mx_blocks(k, k_block_scale)


def are_wide_in(arguments: Mapping[str, Any]) -> bool:
    """The same of arguments by name."""
    keys = arguments.get("k_cache", arguments["k"])
    return are_wide(arguments["q"], keys, arguments["k_block_scale"])


def heads_of(k, heads_first: bool) -> int:
    """Key/value heads of k. heads_first: it has pages (heads_kv, page_size, head_dim)."""
    return k.shape[-3 if heads_first and k.dim() > 2 else -2]


class Asked(NamedTuple):
    """Parameters of the public functions that, with the tensors, decide how q is quantised.

    offsets, used  of queries
    k_descale, v_descale  which may be of each key
    """

    heads_kv: int
    offsets: object = None
    used: object = None
    max_seqlen_q: object = None
    pack_gqa: object = None
    tokens_per_split: int | None = None
    batch_invariant: bool | None = None
    q_quantize: object = None
    k_descale: object = None
    v_descale: object = None

    @staticmethod
    def of(heads_kv: int, given: Mapping[str, Any]) -> Asked:
        """given: arguments by name, of which any may be missing."""
        names = (*LENGTHS_OF_QUERIES, *Asked._fields[3:])
        return Asked(heads_kv, *[given.get(name) for name in names])

    @property
    def lengths_differ(self) -> bool:
        return not (self.offsets is self.used is None)

    def scales_keys(self, q) -> bool:
        """Whether keys have scales of their own."""
        batch = q.shape[0]
        if isinstance(self.offsets, torch.Tensor) and self.offsets.dim():
            batch = self.offsets.shape[0] - 1
        given = [x for x in (self.k_descale, self.v_descale) if isinstance(x, torch.Tensor)]
        return any(is_by_row(scale, (batch, self.heads_kv)) for scale in given)


def stay_wide(q, asked: Asked, k_rope=None) -> bool:
    """Whether the call gets a kernel that takes q as it is; metadata only. Of are_wide.

    ValueError: q_quantize is "never", and no kernel takes it so.
    """
    if q.dim() != (4 if asked.offsets is None else 3):
        return False  # refused later
    never = asked.q_quantize == "never"
    if never or (asked.q_quantize is None and _never_by_default(q, asked)):
        against = _not_dequantized(q, asked, k_rope)
        if never and against:
            raise ValueError(
                f"q_quantize: 'never' with {against} and q of {q.dtype} over k of 8 bits; accepted: None or 'auto', "
                f"which quantise q (errors: docs/serving/eight_bits.md), or k and v of {q.dtype}"
            )
        if not against:
            return True
    return policy.dequantizes() and _are_few(q, asked, k_rope)


def _not_dequantized(q, asked: Asked, k_rope) -> str | None:
    """What no kernel that dequantizes keys runs; None: some kernel runs it."""
    depth = int(q.shape[-1])
    if k_rope is None:
        rope, runs = 0, True
    else:
        check_is_tensor("k_rope", k_rope)
        rope = int(k_rope.shape[-1]) if k_rope.dim() else 0
        stored = DTYPE_NAMES.get(k_rope.dtype, "another")
        runs = may_be_beside_dequantized(stored, DTYPE_NAMES[q.dtype])
    if dequantizes_rows(depth, k_rope is not None):
        return None
    if not dequantizes_units(depth, rope, runs):
        if k_rope is None:
            return f"a head_dim of {depth} (kernels: {in_words(QK_DEPTHS_OF_FP8)})"
        return (
            f"k_rope of {k_rope.dtype} with {rope} of {depth} columns (kernels: up to {SPAN} after a multiple of "
            f"{SPAN}, of 8 bits or {q.dtype})"
        )
    if asked.scales_keys(q):
        return (
            f"a scale for each key (kernels: k of one tensor of up to {DEQUANTIZED_DEPTH} columns)"
        )
    return None


def _never_by_default(q, asked: Asked) -> bool:
    said = policy.queries()
    cut = asked.tokens_per_split is not None or policy.batch_invariant(asked.batch_invariant)
    if said != "auto" or cut:
        return said != "quantised"
    return asked.lengths_differ


def _are_few(q, asked: Asked, k_rope) -> bool:
    """Whether "auto" takes q as it is."""
    packed = asked.offsets is not None
    queries = q.shape[-3]
    if packed and isinstance(asked.max_seqlen_q, int):
        queries = min(queries, asked.max_seqlen_q)
    if (
        policy.batch_invariant(asked.batch_invariant)
        or not 0 < queries <= SWAPPED_ROWS[-1]
        or asked.heads_kv <= 0
        or q.shape[-2] % asked.heads_kv
        or not length_may_choose(asked.tokens_per_split, packed, asked.used)
    ):
        return False
    pack_gqa = None if asked.pack_gqa is None else bool(asked.pack_gqa)
    group = int(q.shape[-2] // asked.heads_kv)
    return k_rope is None and dequantizes(int(q.shape[-1]), int(queries), group, pack_gqa)


def dequantizes(depth: int, queries: int, group: int, pack_gqa: bool | None) -> bool:
    """Whether so many queries get the kernel that dequantizes keys and values; a constant under torch.compile."""
    return _dequantizes(depth, queries, group, pack_gqa)


@lru_cache(maxsize=1024)
def _dequantizes(depth: int, queries: int, group: int, pack_gqa: bool | None) -> bool:
    call = Call(
        BF16.name,
        depth,
        depth,
        kv_dtype=E4M3.name,
        group=group,
        seqlen_q=queries,
        pack_gqa=pack_gqa,
    )
    return which_kernel(call).family == DequantizedTile.family


OF_QUERIES = "q", "q_rope", "q_descale", "out"


def quantised_of(arguments: dict) -> tuple:
    """OF_QUERIES of a call whose q is wider than its keys: others where q is quantised.

    arguments: of a public function, by name; those it lacks are None.
    """
    k, v = (arguments.get(f"{name}_cache", arguments[name]) for name in "kv")
    q, q_rope, q_descale, out = map(arguments.get, OF_QUERIES)
    k_rope, table = arguments.get("k_rope"), arguments.get("page_table")
    table = arguments.get("block_table") if table is None else table
    heads = heads_of(k, table is not None and arguments.get("kv_layout") == "HND")
    if stay_wide(q, Asked.of(heads, arguments), k_rope):
        return q, q_rope, q_descale, out
    return quantised_beside(q, k, v, q_descale, out, k_rope, q_rope)


def quantised(q: torch.Tensor, k: torch.Tensor, v, q_descale, out) -> tuple:
    """-> (q in the dtype of k, scale of each query and head, out). TypeError for a scale, which q does not have yet.

    Called where q is of WIDE and k of FP8.
    """
    out = _checked_out(q, k, v, q_descale, out)
    scale = _scale_of(_largest(q) / torch.finfo(k.dtype).max)
    return (q / scale).to(k.dtype), scale, out


def quantised_beside(q, k, v, q_descale, out, k_rope, q_rope) -> tuple:
    """-> (q, its last columns or None, scale, out): the same, where k_rope may have columns of 16 bits beside k.

    If they have the dtype of k, the columns of q that they multiply are quantised together with the others.
    """
    if k_rope is None or (getattr(k_rope, "dtype", None) == k.dtype and q_rope is None):
        q, scale, out = quantised(q, k, v, q_descale, out)
        return q, q_rope, scale, out
    if q_rope is not None:
        raise TypeError(
            f"q_rope: given with q of {q.dtype}, which has these columns after its others; accepted: None, or q of "
            f"{k.dtype}"
        )
    check_is_tensor("k_rope", k_rope)
    if k_rope.dtype not in WIDE:
        raise TypeError(
            f"k_rope: dtype {k_rope.dtype} beside k of {k.dtype}; accepted: {' or '.join(map(str, (*WIDE, k.dtype)))}; "
            "convert with .to(torch.bfloat16)"
        )
    columns, own = k_rope.shape[-1] if k_rope.dim() else 0, k.shape[-1]
    if q.shape[-1] != own + columns:
        raise ValueError(
            f"k_rope: {columns} columns after {own} of k while q has {q.shape[-1]}; accepted: {q.shape[-1]} together"
        )
    out = _checked_out(q, k, v, q_descale, out)
    head, tail = q.split((own, columns), -1)
    largest = _largest(head) / torch.finfo(k.dtype).max
    scale = _scale_of(torch.maximum(largest, _largest(tail) / LARGEST_BESIDE))
    return (head / scale).to(k.dtype), (tail / scale).to(k_rope.dtype), scale, out


def _checked_out(q, k, v, q_descale, out):
    """out, of the dtype of q where that is no default. Refuses what cannot be quantised."""
    check_no_gradient({"q": q})
    check_no_scale(q, k, q_descale)
    if out is None and q.dtype is torch.float16 and isinstance(v, torch.Tensor):
        return q.new_empty((*q.shape[:-1], v.shape[-1]))
    return out


def _largest(rows: torch.Tensor) -> torch.Tensor:
    """Size of the largest number of each row, float32; one operation."""
    return torch.linalg.vector_norm(rows, torch.inf, -1, True, dtype=torch.float32)


def _scale_of(largest: torch.Tensor) -> torch.Tensor:
    """The scale of rows, never 0. Quotients by it exceed the largest of the dtype only by an error that rounds back."""
    return largest.clamp_(min=torch.finfo(torch.float32).tiny)
