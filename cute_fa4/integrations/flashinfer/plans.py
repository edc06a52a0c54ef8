"""FlashInfer's wrappers: plan(...) once for all layers of a step, then run(...) for each layer.

plan stores its arguments: offsets, a page table built from the lists, lengths, and the options of the call. It
compiles nothing, chooses no kernel and plans no work, because a CTA computes its work from the lengths on the
device. Like FlashInfer's, it reads the offsets on the host, to find the width of the table. run calls
flash_attn_varlen_func.

With use_cuda_graph=True the table and the lengths stay at the addresses of the first plan. The table is as wide as
the buffer of page numbers, so that a captured run reads what the last plan wrote: batch * len(buffer) int32.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from cute_fa4.calls.operands.foreign import check_neutral
from cute_fa4.calls.operands.four_bits import columns_of
from cute_fa4.calls.operands.tensors import check_is_tensor, check_rank
from cute_fa4.integrations.callers_names import asked
from cute_fa4.integrations.flashinfer.batches import PACKED, attend_pages
from cute_fa4.integrations.flashinfer.words import (
    as_int32,
    blocks_of,
    check_layout,
    out_of,
    right_of,
    scales_of,
    sink_of,
    window_of,
)
from cute_fa4.system.messages import shown

SCALES = ("sm_scale", "v_scale")
NAMES = {
    "page_table": "block_tables", "seqused_k": "seq_lens", "cu_seqlens_q": "qo_indptr", "cu_seqlens_k": "kv_indptr",
    "learnable_sink": "sinks", "softmax_scale": "sm_scale", "softcap": "logits_soft_cap", "q_descale": "q_scale",
    "k_descale": "k_scale", "v_descale": "v_scale", "tokens_per_split": "fixed_split_size * page_size",
    "k_block_scale": "kv_cache_sf", "v_block_scale": "kv_cache_sf", "v_block_scale_layout": "kv_cache_sf",
}  # fmt: skip
OF_AUTO = "fa2"  # the backend of the wrappers that "auto" is for an NVFP4 cache
OF_PAGES = NAMES | {"k": "paged_kv_cache", "v": "paged_kv_cache"}


@dataclass(frozen=True)
class Plan:
    """The arguments of plan. run checks heads and depths."""

    heads: tuple[int, int]
    depth: int  # of q and k
    dtypes: tuple  # of q, of keys, of out
    sm_scale: float
    window: tuple[int, int]
    options: dict = field(default_factory=dict)
    offsets: torch.Tensor | None = None  # of queries; None: `queries` of each request
    key_offsets: torch.Tensor | None = None
    queries: int | None = None
    max_queries: int | None = None
    table: torch.Tensor | None = None
    lengths: torch.Tensor | None = None
    depth_v: int | None = None  # None: any


class Wrapper:
    """Common base of the three wrappers."""

    def __init__(self, float_workspace_buffer, kv_layout, use_cuda_graph, backend):
        check_is_tensor("float_workspace_buffer", float_workspace_buffer)
        check_layout(kv_layout)
        check_neutral(backend=backend)
        self.device = float_workspace_buffer.device
        self._kv_layout, self._backend = kv_layout, backend
        self._use_cuda_graph = use_cuda_graph
        self._plan: Plan | None = None
        self._kept: dict[str, torch.Tensor] = {}

    @property
    def is_cuda_graph_enabled(self) -> bool:
        return self._use_cuda_graph

    def reset_workspace_buffer(self, float_workspace_buffer, int_workspace_buffer) -> None:
        """No effect: torch allocates the memory of split keys for each call."""

    def end_forward(self) -> None:
        """No effect, as in FlashInfer."""

    def run_return_lse(self, *args, **options):
        return self.run(*args, return_lse=True, **options)

    def _stored(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Copied to the device; with use_cuda_graph always to the first address."""
        if not self._use_cuda_graph:
            return tensor.to(self.device, non_blocking=True)
        if name not in self._kept:
            self._kept[name] = tensor.to(self.device).clone()
        kept = self._kept[name]
        if kept.shape != tensor.shape:
            raise ValueError(
                f"{name}: shape {tuple(tensor.shape)} with use_cuda_graph=True after a plan with {tuple(kept.shape)}; "
                "accepted: the same; use another wrapper"
            )
        return kept.copy_(tensor, non_blocking=True)

    def _planned(self, q, k, v) -> Plan:
        """The plan, checked against the tensors of a run."""
        plan = self._plan
        if plan is None:
            raise RuntimeError("run: called before plan; accepted: plan(...) first")
        check_is_tensor("q", q)
        check_rank("q", q, PACKED)
        check_is_tensor("k", k)
        check_is_tensor("v", v)
        heads = q.shape[1], k.shape[1 if k.dim() == 4 and self._kv_layout == "HND" else -2]
        for name, found, planned in (
            ("num_qo_heads, num_kv_heads", heads, plan.heads),
            ("head_dim", (q.shape[-1], columns_of(k)), (plan.depth, plan.depth)),
            ("head_dim_vo", columns_of(v), plan.depth_v or columns_of(v)),
            ("q_data_type, kv_data_type", (q.dtype, k.dtype), plan.dtypes[:2]),
        ):
            if found != planned:
                raise ValueError(f"{name}: {found} in run; accepted: {planned}, as planned")
        return plan

    def _blocks(self, k, v, kv_cache_sf) -> dict:
        """The block scales of a cache, those of NVFP4 in the order of the backend; {} without."""
        return blocks_of((k, v), kv_cache_sf, self._backend, OF_AUTO)

    def _changed(self, **given) -> None:
        """The options of the plan that forward overrides, as in FlashInfer."""
        if self._plan is not None:
            options = self._plan.options | {"softcap": given.pop("logits_soft_cap") or 0.0}
            scale = given.pop("sm_scale")
            scale = self._plan.depth**-0.5 if scale is None else scale
            right = right_of(given.pop("causal"))
            window = given.pop("window_left"), right
            self._plan = replace(self._plan, options=options, sm_scale=scale, window=window)
        check_neutral(**given)


def options_of(logits_soft_cap, disable_split_kv, fixed_split_size, page_size: int) -> dict:
    """Options of the call: soft cap and key splits."""
    options = {"softcap": logits_soft_cap or 0.0, "num_splits": 1 if disable_split_kv else 0}
    if fixed_split_size is not None and fixed_split_size > 0:
        options["tokens_per_split"] = fixed_split_size * page_size
    return options


def dtypes_of(q_data_type, kv_data_type, o_data_type) -> tuple:
    q = _dtype("q_data_type", q_data_type)
    kv = q if kv_data_type is None else _dtype("kv_data_type", kv_data_type)
    return q, kv, q if o_data_type is None else _dtype("o_data_type", o_data_type)


def _dtype(name: str, given) -> torch.dtype:
    found = getattr(torch, given, None) if isinstance(given, str) else given
    if not isinstance(found, torch.dtype):
        raise TypeError(f"{name}: {shown(given)}; accepted: a torch.dtype, or its name")
    return found


def scale_of(sm_scale, depth: int):
    return depth**-0.5 if sm_scale is None else sm_scale


def _widest(indptr) -> int:
    """The largest number of pages of a request, at least 1; read on the host."""
    return max(int(indptr.diff().max()), 1) if len(indptr) > 1 else 1


def table_of(indptr, indices, width: int) -> torch.Tensor:
    """(batch, width): the pages of each request, in order; 0 after the last."""
    starts, counts = indptr[:-1, None], indptr.diff()[:, None]
    places = torch.arange(width, device=indptr.device)
    if indices.numel() == 0:
        return indices.new_zeros(len(indptr) - 1, width)
    pages = indices[(starts + places).clamp(max=len(indices) - 1)]
    return torch.where(places < counts, pages, 0).to(torch.int32)


def lengths_of(indptr, last_page_len, page_size: int) -> torch.Tensor:
    """(batch,): keys of each request."""
    counts = indptr.diff()
    return torch.where(counts > 0, (counts - 1) * page_size + last_page_len, 0).to(torch.int32)


class Paged(Wrapper):
    """Keys in pages that lists name."""

    def __init__(self, float_workspace_buffer, kv_layout, use_cuda_graph, indices_buffer, backend):
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph, backend)
        if use_cuda_graph:
            check_is_tensor("paged_kv_indices_buffer", indices_buffer)
            self._capacity = len(indices_buffer)

    def _pages(self, indptr, indices, last_page_len, page_size, block_tables, seq_lens) -> dict:
        """table and lengths of a plan."""
        given = {"indptr": indptr, "indices": indices, "last_page_len": last_page_len}
        indptr, indices, last = (as_int32(name, x).to(self.device) for name, x in given.items())
        if last.shape != (len(indptr) - 1,):
            raise ValueError(
                f"last_page_len: shape {tuple(last.shape)}; accepted: ({len(indptr) - 1},), one less than indptr"
            )
        if block_tables is None:
            if self._use_cuda_graph and len(indices) > self._capacity:
                raise ValueError(
                    f"indices: {len(indices)} pages; accepted with use_cuda_graph=True: at most "
                    f"{self._capacity}, the length of its buffer"
                )
            width = self._capacity if self._use_cuda_graph else _widest(indptr)
            block_tables = table_of(indptr, indices, width)
        if seq_lens is None:
            seq_lens = lengths_of(indptr, last, page_size)
        return {
            "table": self._stored("block_tables", as_int32("block_tables", block_tables)),
            "lengths": self._stored("seq_lens", as_int32("seq_lens", seq_lens).reshape(-1)),
        }

    def _run(self, q, caches, scales, outs, window_left, further, queries):
        """caches: (K, V), kv_cache_sf. outs: (out, lse, return_lse).

        further: (sinks, skip_softmax_threshold_scale_factor)
        """
        caches, kv_cache_sf = caches
        k, v = caches
        plan = self._planned(q, k, v)
        left, right = plan.window
        options = dict(
            window_size=window_of(left if window_left is None else window_left, right),
            learnable_sink=sink_of(further[0]),
            skip_softmax_threshold_scale_factor=further[1],
            **self._blocks(k, v, kv_cache_sf),
            **scaled(plan, q, k, *scales),
            **plan.options,
        )
        if plan.offsets is not None:
            options |= dict(cu_seqlens_q=plan.offsets, max_seqlen_q=plan.max_queries)
        where = plan.table, plan.lengths, self._kv_layout
        out = out_of(outs[0], plan.dtypes[2], q, columns_of(v))
        return asked(
            attend_pages, OF_PAGES, q, caches, where, queries, outs[1:], out=out, **options
        )


def scaled(plan: Plan, q, k, q_scale, k_scale, v_scale) -> dict:
    scale = plan.sm_scale
    for factor in (q_scale, k_scale):
        scale = scale if factor is None else scale * factor
    return scales_of(q, k, scale, 1.0 if v_scale is None else v_scale, SCALES)


def check_run(args: tuple, enable_pdl) -> None:
    """Refuse arguments that run does not support."""
    if args:
        raise NotImplementedError(
            f"run: {len(args)} further arguments by position, for a kernel of the caller; accepted: none"
        )
    check_neutral(enable_pdl=enable_pdl)
