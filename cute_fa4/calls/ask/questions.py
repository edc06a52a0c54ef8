"""Check a call without making it: its checks run on tensors without data, and nothing is compiled.

    >>> from cute_fa4.calls.ask.questions import Sizes, refusal_and_families
    >>> sizes = Sizes(group=8, page_size=16, seqlen_k=4096)
    >>> given = {"page_table": True, "cache_seqlens": True, "num_splits": 0}
    >>> refusal_and_families("bf16", (128, 128), sizes, "sm_100a", given)
    (None, ('mhaswap',))
    >>> refusal_and_families("bf16", (128, 128), sizes, "sm_100a", {"cache_seqlens": True, "k": True})
    ('k, v: one of them is None; accepted: both or neither', ())

A question uses the shape, strides and dtype of a tensor; True stands for one that fits the rest. Contents of lengths
and pages are not read, as on CUDA.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from cute_fa4.block_sparsity import DEFAULT_BLOCK_SIZE, BlockSparseTensors
from cute_fa4.calls.append import (
    prepare_append_and_attention,
    refuse_unbuilt,
    with_lengths_of_cache,
    with_rows_of_cache,
)
from cute_fa4.calls.operands.blocks import taken
from cute_fa4.calls.operands.foreign import check_neutral
from cute_fa4.calls.operands.four_bits import NAMES_OF_KEYS
from cute_fa4.calls.operands.rope_depths import ROPE_SPAN
from cute_fa4.calls.operands.tensors import DTYPE_NAMES, OUT_OF
from cute_fa4.calls.options import functions_of
from cute_fa4.calls.prepare import one_of, prepare_attention
from cute_fa4.calls.queries import Asked, are_wide, heads_of, quantised_beside, stay_wide
from cute_fa4.calls.request import asked_of
from cute_fa4.calls.small_blocks import in_tiles
from cute_fa4.compiler import policy
from cute_fa4.dtypes import DTYPES, row_of
from cute_fa4.layouts.cache_scales import LINEAR
from cute_fa4.operands import (
    ALIASES,
    ARGUMENTS,
    BLOCKS,
    LENGTHS,
    NAMES,
    OF_BATCH,
    OFFSETS,
    OFFSETS_OF_QUERIES,
    OPERANDS,
    ROPE,
    SCALES,
    tensors_of,
)
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.system.devices import asked_for

TORCH_DTYPE = {name: dtype for dtype, name in DTYPE_NAMES.items()}
KEY_TORCH_DTYPE = {name: DTYPES[DTYPES[name].element].torch for name in NAMES_OF_KEYS}
_VARLEN, _APPEND = (tuple(ARGUMENTS[way].split()) for way in ("varlen", "append"))
# Parameters that say where sequences are stored: of one function only, and of both.
OF_CACHES = (
    *("k", "v", "cache_seqlens", "cu_seqlens_k_new", "cache_batch_idx", "cache_leftpad"),
    *("rotary_cos", "rotary_sin", "qv", "four_over_six"),
)
OF_VARLEN = (
    *(name for name in NAMES[LENGTHS] if name in _VARLEN and name not in _APPEND),
    *("seqused_k_excludes_new", "max_seqlen_k"),
    *NAMES[ROPE],
)
OF_LENGTHS = frozenset((*_VARLEN, *_APPEND, *OF_CACHES, ALIASES["page_table"])) - {
    *("q", "*", "k_cache", "v_cache"),
    *(*NAMES[BLOCKS], "block_size"),  # public functions have them in block_sparse_tensors
}


@dataclass(frozen=True)
class Sizes:
    """Sizes and dtypes of the tensors that a question does not give.

    batch      None: from the first tensor of lengths or pages, else 1
    seqlen_q   queries of a sequence, and new rows that are appended
    seqlen_k   keys that the cache of a sequence can hold
    page_size  keys of a page
    kv_dtype   of k, v and caches, "e4m3", "e5m2", "e2m1" or "mxe4m3" under q of 16 bits; None: that of q
    """

    group: int = 1
    heads_kv: int = 1
    batch: int | None = None
    seqlen_q: int = 1
    seqlen_k: int = 4096
    page_size: int = 16
    kv_dtype: str | None = None


def function_of(names) -> str:
    """The public function that has parameters of these names (a part of OF_LENGTHS).

    >>> function_of(["page_table", "cache_seqlens"]), function_of(["page_table", "seqused_k"])
    ('flash_attn_with_kvcache', 'flash_attn_varlen_func')
    """
    caches = [name for name in names if name in OF_CACHES]
    others = [name for name in names if name in OF_VARLEN]
    if caches and others:
        raise TypeError(
            f"{others[0]}: given with {caches[0]}; flash_attn_with_kvcache has no {', '.join(OF_VARLEN)}; "
            f"flash_attn_varlen_func has no {', '.join(OF_CACHES)}"
        )
    return "flash_attn_with_kvcache" if caches else "flash_attn_varlen_func"


def refusal_and_families(
    dtype: str, depths: tuple[int, int], sizes: Sizes, arch: str, given: dict
) -> tuple[str | None, tuple[str, ...]]:
    """-> (message of the error that such a call raises, or None; families of the attention kernels that it launches).

    depths  of q and k, of v
    given   parameters of the public function by name; None counts as not given
    """
    given = {name: value for name, value in given.items() if value is not None}
    ask = _with_cache if function_of(given).endswith("kvcache") else _varlen
    try:
        tensors = _Tensors(TORCH_DTYPE[dtype], depths, sizes, given)
        with asked_for(arch) as configs:
            ask(tensors, {name: tensors.of(name) for name in given})
    except (TypeError, ValueError, NotImplementedError) as error:
        return str(error), ()
    families = (c.schedule.family for c in configs if isinstance(c, FA4Config))
    return None, tuple(dict.fromkeys(families))  # V with many columns takes more than one launch


class _Tensors:
    """Tensors of a call on the meta device: those of the question, and the missing ones."""

    def __init__(self, dtype: torch.dtype, depths: tuple[int, int], sizes: Sizes, given: dict):
        self.dtype, self.given, self.sizes = dtype, given, sizes
        self.of_keys = dtype if sizes.kv_dtype is None else KEY_TORCH_DTYPE[sizes.kv_dtype]
        self.depth_qk, self.depth_v = depths
        self.heads_q = sizes.group * sizes.heads_kv
        self.table = "page_table" if "page_table" in given else "block_table"
        self.batch = self._batch() if sizes.batch is None else sizes.batch

    def _batch(self) -> int:
        for axis, more in ((OF_BATCH[0], 0), (OFFSETS[0], 1)):
            for name, axes in _AXES.items():
                tensor = self.given.get(name) if axes[0] == axis else None
                if isinstance(tensor, torch.Tensor) and tensor.dim():
                    return max(tensor.shape[0] - more, 0)
        new = self.given.get("k")
        return new.shape[0] if isinstance(new, torch.Tensor) and new.dim() == 4 else 1

    def of(self, name: str):
        """The value of a parameter; True becomes a tensor where the parameter is one."""
        value = self.given[name]
        if value is True and name in _OPEN:
            return _OPEN[name](self)
        if name == "block_sparse_tensors":
            return BlockSparseTensors._make(map(_without_data, BlockSparseTensors.of(value)))
        return _without_data(value)

    def empty(self, *shape, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype or self.dtype, device="meta")

    def q(self) -> torch.Tensor:
        columns = self.depth_qk - (self.rope_depth if "q_rope" in self.given else 0)
        return self._rows(OFFSETS_OF_QUERIES, self.sizes.seqlen_q, self.heads_q, columns)

    def q_rope(self) -> torch.Tensor:
        of_rows = OFFSETS_OF_QUERIES, self.sizes.seqlen_q, self.heads_q, self.rope_depth
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
        """The dtype of k_rope and q_rope if the question has none: that of q, or bf16 for q of 8 bits with q_rope."""
        return OUT_OF[self.dtype] if "q_rope" in self.given else self.dtype

    def keys(self, depth: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """K or V, dense, packed or a cache; dtype: of scales of their blocks, one for so many numbers as `depth`."""
        if dtype is None:
            dtype, depth = self.of_keys, depth // self.in_element
        if self.table not in self.given:
            of_rows = "cu_seqlens_k", self.sizes.seqlen_k, self.sizes.heads_kv, depth
            return self._rows(*of_rows, dtype)
        page, heads = self.sizes.page_size, self.sizes.heads_kv
        if self.given.get("kv_layout") == "HND":
            page, heads = heads, page
        return self.empty(self.batch * self.pages(), page, heads, depth, dtype=dtype)

    @property
    def in_element(self) -> int:
        """Numbers of k and v that share an element."""
        return row_of(self.sizes.kv_dtype).in_byte

    def block_scales(self) -> dict[str, torch.Tensor]:
        """Scales of the blocks of a cache that always has them, unless the question has them."""
        row = row_of(self.sizes.kv_dtype)
        if row.cache_scales is None:
            return {}
        depths = {"k_block_scale": self.depth_qk, "v_block_scale": self.depth_v}
        return {
            name: self.keys(depth // row.block, row.cache_scales.torch)
            for name, depth in depths.items()
            if name not in self.given
        }

    def new_rows(self, depth: int) -> torch.Tensor:
        return self._rows("cu_seqlens_k_new", self.sizes.seqlen_q, self.sizes.heads_kv, depth)

    def pages(self) -> int:
        """Pages of a sequence. Pages of 0 keys are refused later."""
        page = self.sizes.page_size
        return -(-self.sizes.seqlen_k // page) if page > 0 else 1

    def _rows(self, offsets: str, seqlen: int, heads: int, depth: int, dtype=None) -> torch.Tensor:
        if offsets in self.given:
            return self.empty(self.batch * seqlen, heads, depth, dtype=dtype)
        return self.empty(self.batch, seqlen, heads, depth, dtype=dtype)

    def lists(self) -> BlockSparseTensors:
        """Lists of partial and full blocks; those of packed queries are packed."""
        queries, keys = DEFAULT_BLOCK_SIZE
        of_queries = -(-self.sizes.seqlen_q // queries)
        of_keys = max(1, -(-self.sizes.seqlen_k // keys))
        if OFFSETS_OF_QUERIES not in self.given:
            blocks = self.batch, self.heads_q, of_queries
            each = self.numbers(*blocks), self.numbers(*blocks, of_keys)
            return BlockSparseTensors(*each, *each)
        rows = self.batch * of_queries
        each = self.numbers(self.heads_q, rows), self.numbers(self.heads_q, rows * of_keys)
        first, begins = (self.numbers(self.batch + 1) for _ in range(2))
        return BlockSparseTensors(
            *each, *each, cu_total_m_blocks=first, cu_block_idx_offsets=begins
        )

    def numbers(self, *shape) -> torch.Tensor:
        return self.empty(*shape, dtype=torch.int32)


# Axes of the index tensors, by each name of their parameters.
_AXES = {
    name: row.axes
    for row in OPERANDS.values()
    for name in (row.name, row.cached, ALIASES.get(row.name))
    if row.axes and name is not None
}


def _numbers(axes: tuple) -> Callable:
    def of(tensors: _Tensors) -> torch.Tensor:
        sizes = {"batch": tensors.batch, "batch + 1": tensors.batch + 1, "pages": tensors.pages()}
        return tensors.numbers(*map(sizes.__getitem__, axes))

    return of


_OPEN: dict[str, Callable] = {
    **{name: _numbers(axes) for name, axes in _AXES.items()},
    "k_rope": lambda tensors: tensors.rope(),
    "q_rope": lambda tensors: tensors.q_rope(),
    "block_sparse_tensors": lambda tensors: tensors.lists(),
    "skipped_tiles": lambda tensors: tensors.numbers(2),
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


# Options of both functions, with their defaults.
_DEFAULTS = dict(
    softmax_scale=None, causal=False, window_size=(None, None), mask=None, learnable_sink=None, s_aux=None,
    softcap=0.0, max_seqlen_q=None, max_seqlen_k=None, num_splits=1, tokens_per_split=None, workspace=None,
    batch_invariant=None, pack_gqa=None, score_mod=None, mask_mod=None, aux_tensors=None, block_sparse_tensors=None,
    kv_layout="NHD", seqused_k_excludes_new=False, return_lse=False, **dict.fromkeys(NAMES[SCALES]), q_quantize=None,
    v_block_scale_layout=LINEAR, four_over_six=False, skip_softmax_threshold_scale_factor=None, skipped_tiles=None,
)  # fmt: skip
OPTIONS = frozenset(_DEFAULTS)


def _with_defaults(given: dict) -> dict:
    """The arguments of a call, with aliases resolved."""
    given = _DEFAULTS | given
    policy.check_quantize(given["q_quantize"])
    for name, alias in reversed(ALIASES.items()):
        given[name] = one_of(name, given.get(name), alias, given.pop(alias, None))
    return given


def _with_queries(given: dict, k: str, v: str) -> dict:
    """Arguments as the public functions pass them on: q of 16 bits over k of 8 may be quantised. k, v: their names."""
    q, keys = given["q"], given[k]
    if not are_wide(q, keys, given["k_block_scale"]):
        return given
    heads = heads_of(keys, given["kv_layout"] == "HND" and keys.dim() > 3)
    if stay_wide(q, Asked.of(heads, given), given.get("k_rope")):
        return given
    names = "q", "q_rope", "q_descale", "out"
    rope = given.get("k_rope"), given.get("q_rope")
    found = quantised_beside(q, keys, given[v], given["q_descale"], None, *rope)
    return given | dict(zip(names, found, strict=True))


def _varlen(tensors: _Tensors, given: dict):
    given = _with_defaults(given | tensors.block_scales())
    depth_k = tensors.depth_qk - tensors.rope_depth
    given |= {"q": tensors.q(), "k": tensors.keys(depth_k), "v": tensors.keys(tensors.depth_v)}
    if given["block_sparse_tensors"] is not None:
        given |= _tiles_of(given)
        given |= taken(given["block_sparse_tensors"])
    given = _with_queries(given, "k", "v")
    return prepare_attention(tensors_of(given), asked_of(given))


def _tiles_of(given: dict) -> dict:
    """What in_tiles makes of the lists of a question."""
    mods, aux = functions_of(given["q"], given, given["aux_tensors"])
    options = given | dict.fromkeys(("score_mod", "mask_mod")) | mods | {"aux_tensors": aux}
    return in_tiles(tensors_of(given), options, contents=False)


def _with_cache(tensors: _Tensors, given: dict):
    refuse_unbuilt(**{name: given.get(name) for name in ("rotary_cos", "rotary_sin", "qv")})
    check_neutral(block_sparse_tensors=given.get("block_sparse_tensors"))
    given = _with_defaults(given | tensors.block_scales())
    caches = {"k_cache": tensors.keys(tensors.depth_qk), "v_cache": tensors.keys(tensors.depth_v)}
    given |= {"q": tensors.q(), **caches}
    call = with_lengths_of_cache(with_rows_of_cache(tensors_of(given, cached=True)))
    given = _with_queries(given, "k_cache", "v_cache")
    call = call._replace(q=given["q"], q_descale=given["q_descale"], out=given.get("out"))
    return prepare_append_and_attention(call, asked_of(given))
