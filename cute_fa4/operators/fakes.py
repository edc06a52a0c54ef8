"""What the operators return for tensors without data, and what they refuse there.

Shapes, strides and dtypes of the results are those of the real call. The checks are the real ones as well: they run on
stand-ins, which have the metadata of a tensor in numbers. A size that is a symbol counts as the number it was traced
with, so checking adds no condition to a trace; where there is no such number, checking is left to the real call. So are
the contents of tensors, and addresses as far as they depend on the allocator.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from cute_fa4.calls import append, attention, latent, prepare
from cute_fa4.calls.operands.lengths import check_lengths
from cute_fa4.calls.operands.rope import checked_rope, depths_of, of_arguments
from cute_fa4.calls.operands.scales import NAMES, checked_scales
from cute_fa4.calls.operands.strides import views_for_descriptors
from cute_fa4.calls.operands.tensors import check, check_tensors
from cute_fa4.calls.options import check_aux, resolve
from cute_fa4.calls.request import CallTensors, Where
from cute_fa4.calls.split_keys.workspace import check_workspace
from cute_fa4.operators.refusals import in_graph
from cute_fa4.operators.spelling import function_of, mask_of
from cute_fa4.sm100.choose.choose_config import LATENT_DEPTHS
from cute_fa4.system.devices import EMULATED_ARCH, Target


def results(check: Callable, **arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) of a call, of which `check` raises what it refuses."""
    workspace = arguments.pop("workspace", None)
    plain = _in_numbers(arguments | {"workspace": workspace})
    if plain is not None:
        memory = plain.pop("workspace")
        if memory is not None:
            in_graph(check_workspace, workspace=memory, arguments=plain)
        in_graph(check, **plain)
    q, out = arguments["q"], arguments.get("out")
    if out is None:
        out = new_out(arguments)
    shape = (0,)
    if arguments["return_lse"]:
        shape = (*q.shape[:-3], q.shape[-2], q.shape[-3])
    return out, q.new_empty(shape, dtype=torch.float32)


def new_out(arguments: dict) -> torch.Tensor:
    """What a call allocates for its result. arguments: of an operator, by name."""
    q = arguments["q"]
    dtype = attention.dtype_of_out(q, None)
    return q.new_empty((*q.shape[:-1], _depth_of_values(arguments)), dtype=dtype)


def _depth_of_values(arguments: dict) -> int:
    if "latent_cache" in arguments:
        return LATENT_DEPTHS[1]
    return arguments.get("v_cache", arguments["v"]).shape[-1]


# --- what each function refuses


def check_dense(q, k, v, *, out=None, key_limit, return_lse, **options) -> None:
    rope = of_arguments(options)
    check(q, k, v, out, in_rope=depths_of(rope, q, k))
    where = Where(key_limit=key_limit)
    check_lengths(q, k, where)
    options["rope"] = checked_rope(rope, q, k, where, contents=False)
    _check_kernel(q, k, v, out, where, return_lse, options)


def check_varlen(q, k, v, *, out=None, return_lse, max_seqlen_q, **rest) -> None:
    options = {name: rest.pop(name) for name in _OPTIONS}
    heads_first = rest.pop("heads_first", rest.get("kv_layout") == "HND")
    if max_seqlen_q is None and rest.get("cu_seqlens_q") is not None:
        max_seqlen_q = q.shape[0]  # the real call reads it from the contents
    rope = of_arguments(rest)
    k, v, where = prepare.checked(
        q, k, v, out, max_seqlen_q=max_seqlen_q, contents=False, rope=rope, **rest
    )
    options["rope"] = checked_rope(rope, q, k, where, contents=False)
    options["latent"] = rest.get("latent", False)
    _check_kernel(q, k, v, out, where, return_lse, options, heads_first)


def check_append(q, k_cache, v_cache, k, v, cache_seqlens, *, out=None, **rest) -> None:
    table, cu_seqlens_q = rest["page_table"], rest["cu_seqlens_q"]
    heads_first = rest["kv_layout"] == "HND"
    if table is not None:
        k_cache, v_cache = prepare.pages_rows_first(
            *(k_cache, v_cache, rest["kv_layout"], ("k_cache", "v_cache"))
        )
        rest["kv_layout"] = "NHD"
    with append.names_of_caches():
        check_tensors(q, k_cache, v_cache, out)
    batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    append.cache_lengths(cache_seqlens, batch, q.device)
    offsets = rest.pop("cu_seqlens_k_new")
    batch_idx = rest["cache_batch_idx"]
    lengths = (cu_seqlens_q, None, None, cache_seqlens, rest["key_limit"], table)
    lengths += (batch_idx, rest["cache_leftpad"])
    scales = tuple(rest.get(name) for name in NAMES)
    others = rest["learnable_sink"], rest["aux_tensors"], (k, v, offsets), scales
    checked = checked_scales(scales, q, k_cache, batch, heads_first)
    written = append.written_scales(k, k_cache, checked)
    append.check_written(CallTensors(q, k_cache, v_cache, out, lengths, *others), written)
    appended = append.Appended(k, v, k_cache, v_cache, cache_seqlens, offsets, table, batch_idx)
    append.check_append(appended, batch, contents=False)
    rest |= dict(cu_seqlens_k=None, max_seqlen_k=None, seqused_q=None, seqused_k_excludes_new=False)
    rest["heads_first"] = heads_first
    with append.names_of_caches():
        check_varlen(q, k_cache, v_cache, out=out, seqused_k=cache_seqlens, **rest)


def check_latent(q, latent_cache, page_table, seqused_k, *, out=None, **rest) -> None:
    given = dict(page_table=page_table, seqused_k=seqused_k, max_seqlen_q=None, latent=True)
    given |= dict(kv_layout="NHD", seqused_k_excludes_new=False)
    with latent.names():
        check_varlen(q, latent_cache, latent.values_of(latent_cache), out=out, **given, **rest)


_OPTIONS = (
    "softmax_scale", "mask", "mask_sizes", "learnable_sink", "pack_gqa", "score_mod", "mask_mod", "aux_tensors",
    "num_splits", "tokens_per_split", "q_descale", "k_descale", "v_descale",
    "o_scale",
)  # fmt: skip


def _check_kernel(
    q, k, v, out, where, return_lse, options: dict, heads_first: bool = False
) -> None:
    """Options, strides and the configuration; the architectures have the same limits."""
    mask = mask_of(options.pop("mask"), tuple(options.pop("mask_sizes")))
    for name in ("score_mod", "mask_mod"):
        options[name] = function_of(name, options[name])
    scales = tuple(options.pop(name, None) for name in NAMES)
    scales = checked_scales(scales, q, k, where.batch(q), heads_first)
    resolved = resolve(q, mask=mask, scales=scales, **options)
    check_aux(resolved, where.batch(q), q.shape[-2], q.shape[:-2].numel())
    attention.check_out_apart(out, where, resolved)
    if 0 in (q.numel(), k.numel(), where.batch(q)):
        return
    given_out = out
    if out is None:
        shape = (*q.shape[:-1], v.shape[-1])
        out = _StandIn(q, shape, torch.empty(shape, device="meta").stride(), 0)
    *_, rows_per_page = views_for_descriptors(q, k, v, out, where)
    target = Target("cuda", EMULATED_ARCH)
    attention.config_of(q, k, v, given_out, where, resolved, rows_per_page, return_lse, target)


# --- tensors without data


class _StandIn(torch.Tensor):
    """Shape, strides, dtype and device of a tensor, and an address that is right relative to its storage."""

    @staticmethod
    def __new__(cls, tensor: torch.Tensor, shape, strides, first_byte: int):
        self = torch.Tensor._make_wrapper_subclass(
            cls,
            shape,
            strides=strides,
            dtype=tensor.dtype,
            device=tensor.device,
            requires_grad=tensor.requires_grad,
        )
        self.first_byte = first_byte
        return self

    def data_ptr(self) -> int:
        return self.first_byte

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        """Views that begin where their tensor does."""
        aten = torch.ops.aten
        accepted = aten.as_strided.default, aten.transpose.int, aten.unsqueeze.default
        assert function in accepted, function
        source = args[0]
        meta = torch.empty_strided(source.shape, source.stride(), device="meta")
        view = function(meta, *args[1:], **(kwargs or {}))
        return cls(source, view.shape, view.stride(), source.first_byte)


class _Unknown(Exception):
    """A size without a number before the call runs."""


def _in_numbers(arguments: dict) -> dict | None:
    """The arguments, stand-ins for tensors and numbers for symbols; None if a symbol has none."""
    try:
        return {name: _plain(value) for name, value in arguments.items()}
    except _Unknown:
        return None


def _plain(value):
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, torch.SymInt):
        if not value.node.has_hint():
            raise _Unknown
        return int(value.node.hint)
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return value
    # Different storages are apart; within one, places are known.
    first_byte = value.untyped_storage()._cdata << 48
    first_byte += _plain(value.storage_offset()) * value.element_size()
    return _StandIn(value, _plain(tuple(value.shape)), _plain(value.stride()), first_byte)
