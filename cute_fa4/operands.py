"""The tensors of a call: the one table from which every list of them is made.

A call passes its tensors on as one record, CallTensors. The annotation of a field is its row of the table. These are
made from the rows:

    calls/        the record of a call by the names of its arguments, keys of repeated calls, checks of index tensors
    operators/    schemas of the operators (ARGUMENTS has the order of each), what tracers and fakes pass on
    compiler/     parameters of the compiled function: types and symbols instead of data
    launches      Plan of calls/plan.py passes the lengths in the order of their rows

CONTRIBUTING.md says what a new tensor touches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Annotated, Any, NamedTuple, get_type_hints

import torch

ROWS, LENGTHS, OPTIONS, NEW, SCALES, ROPE = "rows", "lengths", "options", "new", "scales", "rope"
BLOCKS = "blocks"
OF_BATCH, OFFSETS, PAGES = ("batch",), ("batch + 1",), ("batch", "pages")
COUNTS = ("batch", "heads", "query blocks")
ENTRIES = (*COUNTS, "key blocks")
# Of lists that follow one another.
OF_PACKED_LISTS = {
    COUNTS: ("heads", "query blocks of all sequences"),
    ENTRIES: ("heads", "entries of all lists"),
}


@dataclass(frozen=True)
class Operand:
    """A row of the table.

    group   fields of a group are adjacent
    axes    names of the dimensions of an int32 index tensor, for messages; (): it is no index tensor
    config  (field, value) of an FA4Config whose kernel has this tensor; None: another rule says which kernels do
    within  the parameter of the launch that has it in a tuple; None: it is its own parameter
    cached  its name in flash_attn_with_kvcache, where that is another one
    name    of the field
    """

    group: str
    axes: tuple[str, ...] = ()
    config: tuple[str, Any] | None = None
    within: str | None = None
    cached: str | None = None
    name: str = ""


Tensor = torch.Tensor | None


class CallTensors(NamedTuple):
    """The tensors that a call reads and writes, unchecked. None: not given.

    k, v          may be those of a cache, to which the new rows are appended
    aux_tensors   a list or tuple, which score_mod and mask_mod read
    """

    q: Annotated[Any, Operand(ROWS)] = None
    k: Annotated[Any, Operand(ROWS, cached="k_cache")] = None
    v: Annotated[Any, Operand(ROWS, cached="v_cache")] = None
    out: Annotated[Any, Operand(ROWS)] = None
    # Where sequences lie and how long they are. The launch passes them in this order.
    cu_seqlens_q: Annotated[Tensor, Operand(LENGTHS, OFFSETS, ("q_layout", "packed"))] = None
    cu_seqlens_k: Annotated[Tensor, Operand(LENGTHS, OFFSETS, ("kv_layout", "packed"))] = None
    seqused_q: Annotated[Tensor, Operand(LENGTHS, OF_BATCH, ("seqused_q", True))] = None
    seqused_k: Annotated[
        Tensor, Operand(LENGTHS, OF_BATCH, ("seqused_k", True), cached="cache_seqlens")
    ] = None
    key_limit: Annotated[Tensor, Operand(LENGTHS, OF_BATCH, ("padded_keys", True))] = None
    page_table: Annotated[Tensor, Operand(LENGTHS, PAGES, ("kv_layout", "paged"))] = None
    cache_batch_idx: Annotated[
        Tensor, Operand(LENGTHS, OF_BATCH, ("cache_batch_idx", True), within="in_cache")
    ] = None
    cache_leftpad: Annotated[
        Tensor, Operand(LENGTHS, OF_BATCH, ("cache_leftpad", True), within="in_cache")
    ] = None
    learnable_sink: Annotated[Tensor, Operand(OPTIONS)] = None
    aux_tensors: Annotated[Any, Operand(OPTIONS)] = None
    skipped_tiles: Annotated[Tensor, Operand(OPTIONS)] = None  # two numbers that the call adds to
    # Rows to append to a cache.
    new_k: Annotated[Tensor, Operand(NEW, cached="k")] = None
    new_v: Annotated[Tensor, Operand(NEW, cached="v")] = None
    cu_seqlens_k_new: Annotated[Tensor, Operand(NEW, OFFSETS)] = None
    # Of 8-bit tensors. The first letter names the field of Scales (cute_fa4/scales.py).
    q_descale: Annotated[Tensor, Operand(SCALES)] = None
    k_descale: Annotated[Tensor, Operand(SCALES)] = None
    v_descale: Annotated[Tensor, Operand(SCALES)] = None
    o_scale: Annotated[Tensor, Operand(SCALES)] = None
    # Caches of 4 bits have them: one for each few numbers of a row.
    k_block_scale: Annotated[Tensor, Operand(SCALES)] = None
    v_block_scale: Annotated[Tensor, Operand(SCALES)] = None
    # The last columns of keys, which all heads share, and what belongs to them.
    k_rope: Annotated[Tensor, Operand(ROPE)] = None
    k_rope_page_table: Annotated[Tensor, Operand(ROPE, PAGES)] = None
    q_rope: Annotated[Tensor, Operand(ROPE)] = None
    k_rope_descale: Annotated[Tensor, Operand(ROPE)] = None
    # Lists of key blocks for each block of queries: the fields of block_sparse_tensors.
    mask_block_cnt: Annotated[Tensor, Operand(BLOCKS, COUNTS, within="blocks")] = None
    mask_block_idx: Annotated[Tensor, Operand(BLOCKS, ENTRIES, within="blocks")] = None
    full_block_cnt: Annotated[Tensor, Operand(BLOCKS, COUNTS, within="blocks")] = None
    full_block_idx: Annotated[Tensor, Operand(BLOCKS, ENTRIES, within="blocks")] = None
    cu_total_m_blocks: Annotated[Tensor, Operand(BLOCKS, OFFSETS, within="blocks")] = None
    cu_block_idx_offsets: Annotated[Tensor, Operand(BLOCKS, OFFSETS, within="blocks")] = None

    def has(self, group: str) -> bool:
        """Whether a tensor of the group is given."""
        return any(tensor is not None for tensor in self[PLACES[group]])

    def of(self, group: str) -> tuple:
        """The tensors of a group, in the order of its fields."""
        return self[PLACES[group]]

    def named(self, *groups: str) -> dict[str, Any]:
        """The tensors of groups, by name."""
        return {name: getattr(self, name) for group in groups for name in NAMES[group]}

    @property
    def query_offsets(self):
        """Where sequences of packed queries begin; None: queries are not packed."""
        return self.cu_seqlens_q

    @property
    def q_layout(self) -> str:
        return "dense" if self.cu_seqlens_q is None else "packed"

    @property
    def kv_layout(self) -> str:
        if self.page_table is not None:
            return "paged"
        return "dense" if self.cu_seqlens_k is None else "packed"

    @property
    def shares_offsets(self) -> bool:
        """Whether new rows have the offsets of the queries."""
        return self.cu_seqlens_q is not None and self.cu_seqlens_k_new is self.cu_seqlens_q

    @property
    def batch(self) -> int:
        """Sequences of queries."""
        return self.q.shape[0] if self.cu_seqlens_q is None else self.cu_seqlens_q.shape[0] - 1


def _rows() -> dict[str, Operand]:
    hints = get_type_hints(CallTensors, include_extras=True)
    return {name: replace(hints[name].__metadata__[0], name=name) for name in CallTensors._fields}


OPERANDS = _rows()
TENSORS = tuple(name for name in OPERANDS if name != "aux_tensors")
# For each group: the names of its fields, and their positions in the record.
NAMES: dict[str, tuple[str, ...]] = {}
for _row in OPERANDS.values():
    NAMES[_row.group] = (*NAMES.get(_row.group, ()), _row.name)
PLACES = {
    group: slice(CallTensors._fields.index(names[0]), CallTensors._fields.index(names[-1]) + 1)
    for group, names in NAMES.items()
}
# Lengths of queries: offsets, and how many count. The kernel that merges parts takes only these.
LENGTHS_OF_QUERIES = tuple(name for name in NAMES[LENGTHS] if name.endswith("_q"))
OFFSETS_OF_QUERIES, _ = LENGTHS_OF_QUERIES
# Offsets of packed queries and packed keys.
OFFSETS_OF_SEQUENCES = tuple(name for name in NAMES[LENGTHS] if OPERANDS[name].axes == OFFSETS)
# Offsets, and how many queries and keys count: all lengths of a call without pages.
LENGTHS_OF_SEQUENCES = tuple(
    name for name in NAMES[LENGTHS] if OPERANDS[name].within is None and name != "page_table"
)


def axes_of_list(name: str, packed: bool) -> tuple[str, ...]:
    """Axes of a tensor of lists. packed: lists follow one another."""
    axes = OPERANDS[name].axes
    return OF_PACKED_LISTS.get(axes, axes) if packed else axes


# Arguments of the operators in the order of their schemas, which are public: those after the star have a default.
# operators/schemas.py has the text of the arguments that are not tensors.
_OF_LISTS = f"{' '.join(NAMES[BLOCKS])} block_size"
_SKIPS = "skip_softmax_threshold_scale_factor"
ARGUMENTS = {
    "dense": "q k v * key_limit k_rope q_rope k_rope_descale k_block_scale v_block_scale v_block_scale_layout "
    f"{_OF_LISTS} {_SKIPS}",
    "varlen": "q k v * cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k seqused_q seqused_k seqused_k_excludes_new "
    "page_table kv_layout key_limit cache_batch_idx cache_leftpad k_rope k_rope_page_table q_rope k_rope_descale "
    f"k_block_scale v_block_scale v_block_scale_layout {_OF_LISTS} {_SKIPS}",
    "append": "q k_cache v_cache k v cache_seqlens * page_table kv_layout cu_seqlens_q cu_seqlens_k_new max_seqlen_q "
    "key_limit cache_batch_idx cache_leftpad k_block_scale v_block_scale v_block_scale_layout "
    f"four_over_six {_SKIPS}",
    "latent": "q latent_cache page_table seqused_k * max_seqlen_k k_block_scale return_max",
    "all": "softmax_scale mask mask_sizes learnable_sink pack_gqa score_mod mask_mod aux_tensors num_splits "
    "tokens_per_split q_descale k_descale v_descale o_scale return_lse batch_invariant",
}

# Fields that flash_attn_varlen_func and flash_attn_with_kvcache have under a second name, too.
ALIASES = {"page_table": "block_table", "learnable_sink": "s_aux"}


def argument_names(cached: bool = False) -> tuple[str, ...]:
    """The name that each field has among the arguments of flash_attn_func and flash_attn_varlen_func.

    cached: of flash_attn_with_kvcache
    """
    return _WITH_CACHE if cached else CallTensors._fields


_WITH_CACHE = tuple(row.cached or row.name for row in OPERANDS.values())


def tensors_of(given: Mapping[str, Any], cached: bool = False) -> CallTensors:
    """The record of a call from its arguments by name, of which any may be missing. cached: as argument_names."""
    # Dynamo of PyTorch 2.8 does not trace map(given.get, ...)
    return CallTensors._make([given.get(name) for name in argument_names(cached)])


def fields(names: Iterable[str]) -> Callable[[CallTensors], tuple]:
    """A function that takes these fields of a record, as a tuple."""
    places = [CallTensors._fields.index(name) for name in names]
    if len(places) > 1:
        return itemgetter(*places)
    return itemgetter(slice(places[0], places[0] + 1) if places else slice(0))


def fields_given(tensors: CallTensors, names: Iterable[str]) -> Callable[[CallTensors], tuple]:
    """A function that takes those of these fields that are given in `tensors`."""
    return fields(name for name in names if getattr(tensors, name) is not None)
