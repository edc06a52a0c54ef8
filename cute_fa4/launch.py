"""A checked call -> a configuration, an allocation, one launch: what the attention functions share.

    given            layout that is compiled
    cu_seqlens_q     q, out packed       otherwise dense
    cu_seqlens_k     k, v packed         otherwise dense
    page_table       k, v paged

CUDA tensors are launched on torch's current stream without synchronising; CPU tensors are executed by the emulator.
"""

from __future__ import annotations

import math
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from cute_fa4 import compile_cache
from cute_fa4.argument_checks import DTYPE_NAMES
from cute_fa4.call_options import AUX_DTYPES, SINK_DTYPES, Options
from cute_fa4.devices import Target, target_of
from cute_fa4.plan import Plan, Results, Views
from cute_fa4.sm100.choose_config import choose_config, packs_gqa
from cute_fa4.sm100.config import FA4Config

# The kernel's row numbers are 32-bit and a tile may reach past the last row.
MAX_ROWS = (1 << 31) - 1024


class EmulatorWarning(UserWarning):
    """CPU tensors run on the emulator: results as on a GPU, at a speed that says nothing of one."""


@dataclass(frozen=True)
class Where:
    """Where sequences lie and how long they are: int32 tensors on the device of q, or None."""

    cu_seqlens_q: torch.Tensor | None = None
    cu_seqlens_k: torch.Tensor | None = None
    seqused_q: torch.Tensor | None = None
    seqused_k: torch.Tensor | None = None
    key_limit: torch.Tensor | None = None
    page_table: torch.Tensor | None = None
    excludes_new: bool = False  # seqused_k does not count the queries
    max_seqlen_q: int = 0  # of packed queries

    @property
    def tensors(self) -> tuple:
        """In the order of the kernel's parameters."""
        return (
            *(self.cu_seqlens_q, self.cu_seqlens_k, self.seqused_q, self.seqused_k),
            *(self.key_limit, self.page_table),
        )

    @property
    def q_layout(self) -> str:
        return "dense" if self.cu_seqlens_q is None else "packed"

    @property
    def kv_layout(self) -> str:
        if self.page_table is not None:
            return "paged"
        return "dense" if self.cu_seqlens_k is None else "packed"

    def batch(self, q: torch.Tensor) -> int:
        return q.shape[0] if self.cu_seqlens_q is None else self.cu_seqlens_q.shape[0] - 1

    def seqlen_q(self, q: torch.Tensor) -> int:
        """Of the longest sequence."""
        return q.shape[1] if self.cu_seqlens_q is None else self.max_seqlen_q


def attend(q, k, v, out, where: Where, options: Options, return_lse: bool):
    """Attention of checked arguments: out, or (out, lse) with return_lse."""
    prepared = plan((q, k, v), q, k, v, out, where, options, return_lse)
    with launching_on(q.device):
        return prepared((q, k, v, out, where.tensors, options.sink, options.aux, None))


def plan(given, q, k, v, out, where: Where, options: Options, return_lse: bool) -> Callable:
    """attend up to the launch: every refusal is raised here, and what is returned launches.

    given: q, k and v as the caller has them, of which q, k and v are views.

    A Plan, or a function that launches with these tensors only, because there is nothing to launch or the keys are
    made up here.
    """
    target = target_of(q.device)
    batch, seqlen_q = where.batch(q), where.seqlen_q(q)
    if options.score_mod is not None and options.score_mod.check is not None:
        rows = batch * seqlen_q if where.q_layout == "dense" else q.shape[0]
        options.score_mod.check(options.aux, batch, q.shape[-2], rows)
    results = Results(q, v, where.q_layout, return_lse)
    if q.numel() == 0 or batch == 0 or seqlen_q == 0:
        return lambda tensors: results.returned(*results.allocated(q, out))
    if k.numel() == 0 or (where.page_table is not None and where.page_table.numel() == 0):
        if where.q_layout == "dense" and where.seqused_q is None:
            return lambda tensors: _fill_without_keys(results, q, out, options.sink)
        k, v, where = _one_hidden_key(k, v, where, batch)
        hidden = plan((q, k, v), q, k, v, out, where, options, return_lse)
        tensors = (q, k, v, out, where.tensors, options.sink, options.aux, None)
        return lambda _: hidden(tensors)

    *views, rows_per_page = _views(q, k, v, out, where)
    config = _config(q, k, where, options, rows_per_page, return_lse, target)
    return Plan(
        function_for(config, target),
        (options.softmax_scale, seqlen_q, options.mask.sizes or None),
        results,
        Views((*given, out), views),
        repeats=not _decided_by_contents(q.device, where),
    )


def function_for(config, target: Target) -> Callable:
    function = compile_cache.function_for(config, target.executor)
    return _Emulated(function) if target.executor == "emulator" else function


def _decided_by_contents(device: torch.device, where: Where) -> bool:
    """Lengths and pages in host memory are checked, and a longest sequence is looked up there."""
    return device.type == "cpu" and any(tensor is not None for tensor in where.tensors)


def _fill_without_keys(results: Results, q, out, sink):
    """Every row is one that sees no key: no launch, a TMA descriptor cannot describe a tensor without rows."""
    out, lse = results.allocated(q, out)
    out.zero_()
    if lse is not None:
        lse.fill_(-math.inf)
        if sink is not None:
            lse.copy_(sink[:, None].expand(lse.shape[1:]))
    return results.returned(out, lse)


def _one_hidden_key(k, v, where: Where, batch: int):
    """The same where only the device knows which rows of out there are: one row of zeros that no sequence has."""
    shape = [1] * (k.dim() - 2) + list(k.shape[-2:])
    if where.kv_layout == "paged":
        shape[1] = max(k.shape[1], 8)
        table = torch.zeros((batch, 1), dtype=torch.int32, device=k.device)
        where = replace(where, page_table=table)
    elif where.kv_layout == "dense":
        shape[0] = batch
    if where.kv_layout != "packed":
        none = torch.zeros((batch,), dtype=torch.int32, device=k.device)
        where = replace(where, seqused_k=none, excludes_new=False)
    return k.new_zeros(shape), v.new_zeros((*shape[:-1], v.shape[-1])), where


def _config(q, k, where: Where, options: Options, rows_per_page, return_lse, target) -> FA4Config:
    group = q.shape[-2] // k.shape[-2]
    pack = options.pack_gqa
    if pack is None:
        pack = packs_gqa(where.seqlen_q(q), group)
    return config_for(
        qkv_dtype=DTYPE_NAMES[q.dtype],
        head_dim=q.shape[-1],
        group=group,
        write_lse=bool(return_lse),
        arch=target.arch,
        mask=options.mask.mask,
        q_layout=where.q_layout,
        kv_layout=where.kv_layout,
        seqused_q=where.seqused_q is not None,
        seqused_k=where.seqused_k is not None,
        cache_excludes_new=where.excludes_new,
        padded_keys=where.key_limit is not None,
        page_size=0 if where.page_table is None else k.shape[1],
        fold_pages=rows_per_page % 8 == 0,
        pack_gqa=bool(pack) and group > 1,
        sink=options.sink is not None,
        sink_dtype="f32" if options.sink is None else SINK_DTYPES[options.sink.dtype],
        score_mod=options.score_mod,
        mask_mod=options.mask_mod,
        aux=tuple((AUX_DTYPES[tensor.dtype], tensor.dim()) for tensor in options.aux),
    )


@lru_cache(maxsize=4096)
def config_for(**choices) -> FA4Config:
    """The configuration that runs such a problem; ValueError with every reason if none does."""
    config = choose_config(**choices)
    refusals = config.refusals()
    if refusals:
        raise ValueError("q, k, v: " + "; ".join(refusals))
    return config


# --- strides


def _views(q, k, v, out, where: Where):
    """-> (q, k, v, out, rows from one page to the next), with strides that a descriptor can hold. out may be None."""
    if where.kv_layout == "dense" and where.seqused_k is None:
        k, v, per_block = with_plain_strides(k), with_plain_strides(v), 0
    else:
        (k, per_block), (v, per_block_v) = _in_row_space("k", k), _in_row_space("v", v)
        if per_block != per_block_v:
            raise ValueError(
                f"v: strides {v.stride()} put {per_block_v} rows from one block to the next while "
                f"k has {per_block} with strides {k.stride()}; accepted: equal, so that one look-up "
                "serves both; slice k and v from one cache, or allocate them alike"
            )
    clips_queries = where.seqused_q is not None or where.q_layout == "packed"
    if out is not None:
        out = _in_row_space("out", out)[0] if clips_queries else with_plain_strides(out)
    return with_plain_strides(q), k, v, out, per_block


def _in_row_space(name: str, tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """(blocks, rows, heads, depth) or (rows, heads, depth) whose rows all lie at multiples of one stride.

    -> (the tensor with usable strides for dimensions of size 1, rows from one block to the next).
    """
    tensor = with_plain_strides(tensor)
    if tensor.dim() == 3:
        return tensor, 0
    (blocks, rows, *_), (block_stride, row_stride, *_) = tensor.shape, tensor.stride()
    if blocks == 1:
        block_stride = rows * row_stride
    elif rows == 1:
        row_stride = block_stride
    if row_stride <= 0 or block_stride % row_stride:
        raise ValueError(
            f"{name}: strides {tensor.stride()}: from one block of {rows} rows to the next it is "
            f"{block_stride} elements, from one row to the next {row_stride}; accepted: a multiple "
            f"of a positive number; copy with {name}.contiguous()"
        )
    per_block = block_stride // row_stride
    last = (blocks - 1) * per_block + rows
    if last > MAX_ROWS:
        raise ValueError(
            f"{name}: {blocks} blocks at every {per_block} rows end at row {last}; accepted: at "
            f"most {MAX_ROWS}, because rows are 32-bit numbers; use fewer blocks, or a layout with "
            "the heads inside a row"
        )
    strides = (block_stride, row_stride, *tensor.stride()[2:])
    if strides != tensor.stride():
        tensor = tensor.as_strided(tensor.shape, strides)
    return tensor, per_block


def with_plain_strides(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, with the strides of dimensions of size 1 as a contiguous tensor would have them.

    torch leaves anything there, and no index ever uses it, but a TMA descriptor encodes it in 36
    bits.
    """
    shape, strides = tensor.shape, tensor.stride()
    if 1 not in shape:
        return tensor
    plain = [0] * len(shape)
    inner = 1
    for dim in reversed(range(len(shape))):
        plain[dim] = inner if shape[dim] == 1 else strides[dim]
        inner = max(inner, plain[dim] * shape[dim])
    return tensor if tuple(plain) == tuple(strides) else tensor.as_strided(shape, plain)


# --- around a launch


def launching_on(device: torch.device) -> AbstractContextManager:
    """The tensors' device as the current one: for the first launch on it, which loads the kernel.

    Later ones do not need it: the compiled host code makes the device of its tensors current for the launch.
    """
    if device.type == "cpu" or device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)


# The emulator counts instructions and keeps errors for the process: one launch at a time.
_emulator_lock = threading.Lock()


@dataclass(frozen=True)
class _Emulated:
    """A compiled function that has the emulator to itself."""

    function: Callable

    def __call__(self, *arguments) -> None:
        _warn_once()
        with _emulator_lock:
            self.function(*arguments)


_warned = False
_warn_lock = threading.Lock()


def _warn_once() -> None:
    global _warned
    with _warn_lock:
        if _warned:
            return
        _warned = True
    warnings.warn(
        "CPU tensors: the kernel's sm_100a PTX is executed by the emulator. The results are those "
        "of the kernel; the running time says nothing about a GPU",
        EmulatorWarning,
        stacklevel=_frames_inside(__name__.partition(".")[0]),
    )


def _frames_inside(package: str) -> int:
    """How far up the call into the package is, counted from the caller of this function."""
    frame, level = sys._getframe(1), 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == package:
        frame, level = frame.f_back, level + 1
    return level
