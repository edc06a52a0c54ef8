"""Results of the operators for tensors without data, and their refusals for such tensors.

Shapes, strides and dtypes of the results are those of the real call. The checks are the real ones as well: they run on
stand-ins, which have the metadata of a tensor in numbers. A size that is a symbol counts as the number it was traced
with, so checking adds no condition to a trace; where there is no such number, checking is left to the real call. So are
the contents of tensors, and addresses as far as they depend on the allocator.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from cute_fa4.calls import append, attention, latent, prepare
from cute_fa4.calls.operands import new_rows
from cute_fa4.calls.operands.blocks import checked_blocks, of_operator
from cute_fa4.calls.operands.four_bits import columns_of
from cute_fa4.calls.operands.rope import checked_rope
from cute_fa4.calls.operands.scales import checked_scales
from cute_fa4.calls.operands.strides import views_for_descriptors
from cute_fa4.calls.operands.tensors import check_tensors
from cute_fa4.calls.options import check_aux, resolve
from cute_fa4.calls.request import Where
from cute_fa4.calls.skipping import FACTOR
from cute_fa4.calls.split_keys.workspace import check_workspace
from cute_fa4.layouts.cache_scales import LINEAR
from cute_fa4.operands import NAMES, NEW, ROWS, CallTensors, tensors_of
from cute_fa4.operators.refusals import in_graph
from cute_fa4.operators.spelling import function_of, mask_of
from cute_fa4.sm100.choose.choose_config import LATENT_DEPTHS
from cute_fa4.system.devices import EMULATED_ARCH, Target


def results(check: Callable, arguments: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) of a call; `check` raises its refusals."""
    plain = in_numbers({"workspace": None, **arguments})
    if plain is not None:
        memory = plain.pop("workspace")
        if memory is not None:
            in_graph(check_workspace, workspace=memory, arguments=plain)
        in_graph(check, call=plain)
    q, out = arguments["q"], arguments.get("out")
    if out is None:
        out = new_out(arguments)
    shape = (0,)
    if arguments["return_lse"]:
        largest = (2,) * arguments.get("return_max", False)
        shape = (*largest, *q.shape[:-3], q.shape[-2], q.shape[-3])
    return out, q.new_empty(shape, dtype=torch.float32)


def new_out(arguments: dict) -> torch.Tensor:
    """The tensor that a call allocates for its result. arguments: of an operator, by name."""
    q = arguments["q"]
    dtype = attention.dtype_of_out(q, None)
    return q.new_empty((*q.shape[:-1], _depth_of_values(arguments)), dtype=dtype)


def _depth_of_values(arguments: dict) -> int:
    if "latent_cache" in arguments:
        return LATENT_DEPTHS[1]
    return columns_of(arguments.get("v_cache", arguments["v"]))


# --- refusals of each function


def check_dense(call: dict) -> None:
    _check(tensors_of(call), call)


def check_varlen(call: dict) -> None:
    _check(tensors_of(call), call)


def check_append(call: dict) -> None:
    given = tensors_of(call, cached=True)
    heads_first, tensors = call["kv_layout"] == "HND", given
    if given.page_table is not None:
        caches = given.k, given.v, call["kv_layout"], ("k_cache", "v_cache")
        k, v = prepare.pages_rows_first(*caches)
        tensors, call = given._replace(k=k, v=v), call | {"kv_layout": "NHD"}
    with append.names_of_caches():
        check_tensors(*tensors.of(ROWS))
    append.cache_lengths(tensors.seqused_k, tensors.batch, tensors.q.device)
    new_rows.check_choice_of_scales(tensors, call["four_over_six"])
    layout = call["v_block_scale_layout"]
    scales = checked_scales(tensors, tensors.batch, heads_first, layout)
    new_rows.check_written(tensors, new_rows.written_scales(tensors, scales))
    new_rows.check_append(tensors, tensors.batch, contents=False)
    with append.names_of_caches():
        _check(tensors._replace(**dict.fromkeys(NAMES[NEW])), call, heads_first=heads_first)


def check_latent(call: dict) -> None:
    with latent.names():
        _check(latent.latent_tensors(call), call, latent=True)


# Options for the checks of tensors, and options for resolve.
_OF_TENSORS = ("max_seqlen_k", "seqused_k_excludes_new", "kv_layout")
_OPTIONS = (
    "softmax_scale", "pack_gqa", "aux_tensors", "num_splits", "tokens_per_split", "batch_invariant",
    "learnable_sink",
)  # fmt: skip


def _check(
    tensors: CallTensors, call: dict, latent: bool = False, heads_first: bool | None = None
) -> None:
    """Tensors, options, strides and the configuration; the architectures have the same limits.

    heads_first: the caller has the rows of a page after the heads; here they come first. None: as kv_layout says
    """
    longest = call.get("max_seqlen_q")
    if longest is None and tensors.q_layout == "packed":
        longest = tensors.q.shape[0]  # the real call reads it from the contents
    of_tensors = {name: call[name] for name in _OF_TENSORS if name in call}
    where = prepare.checked(
        tensors, max_seqlen_q=longest, contents=False, latent=latent, **of_tensors
    )
    if heads_first is None:
        heads_first = call.get("kv_layout") == "HND"
    _check_kernel(where, call, latent, heads_first)


def _check_kernel(where: Where, call: dict, latent: bool, heads_first: bool) -> None:
    tensors = where.tensors
    q, k, v, out = tensors.of(ROWS)
    rope = checked_rope(tensors, where, contents=False)
    resolved = resolve(
        q,
        return_max=call.get("return_max", False),
        mask=mask_of(call["mask"], tuple(call["mask_sizes"])),
        **{name: function_of(name, call[name]) for name in ("score_mod", "mask_mod")},
        **{name: call[name] for name in _OPTIONS},
        scales=checked_scales(
            tensors, tensors.batch, heads_first, call.get("v_block_scale_layout", LINEAR)
        ),
        rope=rope,
        blocks=checked_blocks(tensors, of_operator(call), where, contents=False),
        skip_softmax_threshold_scale_factor=call.get(FACTOR),
        latent=latent,
    )
    check_aux(resolved, tensors.batch, q.shape[-2], q.shape[:-2].numel())
    attention.check_out_apart(where, resolved)
    if 0 in (q.numel(), k.numel(), tensors.batch):
        return
    if out is None:
        shape = (*q.shape[:-1], columns_of(v))
        out = _StandIn(q, shape, torch.empty(shape, device="meta").stride(), 0)
    *_, rows_per_page = views_for_descriptors(q, k, v, out, where)
    target = Target("cuda", EMULATED_ARCH)
    lse = call["return_lse"]
    attention.config_of(where, resolved, rows_per_page, lse, target)


# --- tensors without data


class _StandIn(torch.Tensor):
    """Shape, strides, dtype and device of a tensor, and an address that is right relative to its storage."""

    first_byte: int

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


def in_numbers(arguments: dict) -> dict | None:
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
    # Different storages are disjoint; within one, offsets are known.
    first_byte = value.untyped_storage()._cdata << 48
    first_byte += _plain(value.storage_offset()) * value.element_size()
    return _StandIn(value, _plain(tuple(value.shape)), _plain(value.stride()), first_byte)
