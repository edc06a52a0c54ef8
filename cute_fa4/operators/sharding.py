"""The operators on DTensors: which shards a rank may attend to alone, and what is replicated first.

A rank computes its own sequences, or its own heads, if no other tensor of the call belongs to other ranks:

    batch   q of (batch, seqlen, heads, head_dim), without offsets; keys of pages are whole on every rank
    heads   heads of q and of keys divide evenly; one key head (latent caches) is whole on every rank

Each dimension of the mesh follows the placement of q, or of a cache that is written. All else, such as shards
along the sequence, is replicated before the call: right, but no faster than one rank. A written tensor is never
moved. Sequences over ranks without the copies: cute_fa4.distributed.

The gradient of a tensor is cut like the tensor. If the tensor is whole on every rank while q is cut, each rank has the
part of its own queries: the gradient is Partial("sum").

torch looks up a rule by operator and class, and the class lives in a module that takes a second to import:
`register_rules` is called where a DTensor may come from.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

from cute_fa4.operands import BLOCKS, NAMES, OF_BATCH, OFFSETS, OPERANDS, SCALES
from cute_fa4.operators.batching import SAME_FOR_ALL_SEQUENCES
from cute_fa4.operators.spelling import function_of
from cute_fa4.sm100.blueprint.score_mods import ScoreMod
from cute_fa4.sm100.traced.trace import Traced

_MODULE = "torch.distributed.tensor"
# Functions of the package that see only scores; alibi's slopes depend on the head.
_SAME_FOR_ALL_HEADS = ("soft_cap(",)
# Arguments and facts that count from the first sequence or head of the call.
_COUNTED = {"batch": "batch", "q_row": "batch", "head": "heads"}
_SCALES = (*NAMES[SCALES], "k_rope_descale")
_GRADIENTS = {"dq": "q", "dk": "k", "dv": "v", "dsink": "learnable_sink", "daux": "aux_tensors"}
_OF_A_RANK = "workspace"  # each rank may pass its own memory, a plain tensor
_OF_SEQUENCES = {
    name
    for row in OPERANDS.values()
    if row.axes[:1] == OF_BATCH
    for name in (row.name, row.cached)
    if name
}
_OFFSETS = [row.name for row in OPERANDS.values() if row.axes == OFFSETS]

# In the place of a dimension: the ranks have parts of a sum.
_SUM = "sum"

# Rules that torch does not know yet, because torch.distributed.tensor has not been imported.
_waiting: list[tuple[torch._ops.OpOverload, Callable]] = []


def add_rule(operator: torch._ops.OpOverload, dims: Callable) -> None:
    """dims(call) says how the tensors of a call, by name, are cut: {name: {"batch": dim, "heads": dim}}.

    A tensor without an entry for a cut is whole on every rank; one with _SUM as its dim is a sum over the ranks. dims
    also names results: "-> out", "-> lse".
    """
    _waiting.append((operator, dims))
    register_rules()


def register_rules() -> None:
    """Tell torch the rules of all operators, if DTensor has been imported by now."""
    if not _waiting or _MODULE not in sys.modules:
        return
    DTensor = getattr(sys.modules[_MODULE], "DTensor", None)
    if DTensor is None:
        return
    for rule in tuple(_waiting):
        _register(*rule, DTensor)
        with contextlib.suppress(ValueError):  # another thread registered first
            _waiting.remove(rule)


def _register(operator, dims, cls) -> None:
    try:
        torch.library.register_torch_dispatch(operator.name(), cls, _rule(operator, dims))
    except RuntimeError as error:
        # Registered by a call that was interrupted here, or by another thread.
        if "already has" not in str(error):
            raise


def _rule(operator, dims):
    arguments = operator._schema.arguments
    names = [a.name for a in arguments]
    defaults = {a.name: a.default_value for a in arguments if a.has_default_value()}
    written = [a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write]
    returned = [f"-> {r.name}" for r in operator._schema.returns]

    def rule(cls, function, types, args, kwargs):
        call = {**defaults, **{names[at]: arg for at, arg in enumerate(args)}, **(kwargs or {})}
        mesh = _mesh_of(call)
        cuts = dims(call)
        roles = _roles(call, cuts, written, mesh)
        local = {n: _local(n, x, cuts, roles, mesh, n in written) for n, x in call.items()}
        results = function(**local)
        one = not isinstance(results, tuple)
        wrapped = [
            _global(result, name, call, cuts, roles, mesh)
            for name, result in zip(returned, (results,) if one else results, strict=True)
        ]
        return wrapped[0] if one else tuple(wrapped)

    return rule


def _tensors(call: dict) -> Iterable[tuple[str, torch.Tensor]]:
    for name, value in call.items():
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(tensor, torch.Tensor):
                yield name, tensor


def _mesh_of(call: dict):
    """The mesh of all tensors."""
    from torch.distributed.tensor import DTensor

    mesh = None
    for name, tensor in _tensors(call):
        if name == _OF_A_RANK and not isinstance(tensor, DTensor):
            continue
        if not isinstance(tensor, DTensor):
            raise TypeError(
                f"{name}: a plain tensor beside DTensors; accepted: a DTensor of their mesh, such as "
                "distribute_tensor(tensor, mesh, [Replicate()] * mesh.ndim)"
            )
        if mesh is not None and tensor.device_mesh != mesh:
            raise ValueError(f"{name}: on {tensor.device_mesh} beside {mesh}; accepted: one mesh")
        mesh = tensor.device_mesh
    return mesh


def _roles(call: dict, cuts: dict, written: list, mesh) -> list[str | None]:
    """For each dimension of the mesh "batch", "heads" or None, replicated: as for q, or for the written tensor.

    A cut of one written tensor is kept even if another does not fit it: the message then names that one.
    """
    fixed = [n for n in written if call.get(n) is not None and n != _OF_A_RANK]
    ahead = [_leading(cuts), *fixed]
    parts = {"batch": 1, "heads": 1}
    roles: list[str | None] = []
    for at in range(mesh.ndim):
        suiting = (
            role
            for role in parts
            if any(_is_cut(call[name], cuts.get(name, {}), role, at) for name in ahead)
            and (
                any(_is_cut(call[name], cuts.get(name, {}), role, at) for name in fixed)
                or not any(_would_move(call[name], cuts.get(name, {}), role, at) for name in fixed)
            )
            and _divide(call, cuts, role, parts[role] * mesh.size(at))
        )
        role = next(suiting, None)
        if role is not None:
            parts[role] *= mesh.size(at)
        roles.append(role)
    return roles


def _leading(cuts: dict) -> str:
    """The tensor that results are cut like: q, or the parts of a merge."""
    return next(iter(cuts))


def _is_cut(tensor, cut: dict, role: str, at: int) -> bool:
    return role in cut and tensor.placements[at] == _placement(cut, role)


def _would_move(tensor, cut: dict, role: str, at: int) -> bool:
    return role in cut and tensor.placements[at] != _placement(cut, role)


def _divide(call: dict, cuts: dict, role: str, parts: int) -> bool:
    """Heads are even on all ranks, so that those of q meet their own of keys; sequences may be uneven."""
    if role == "batch":
        return True
    named = {name: cut[role] for name, cut in cuts.items() if cut.get(role, _SUM) is not _SUM}
    return all(
        call[name].shape[dim] % parts == 0
        for name, dim in named.items()
        if call.get(name) is not None
    )


def _placement(cut: dict, role: str | None):
    from torch.distributed.tensor import Partial, Replicate, Shard

    if role not in cut:
        return Replicate()
    return Partial("sum") if cut[role] is _SUM else Shard(cut[role])


def _placements(cut: dict, roles: list) -> list:
    return [_placement(cut, role) for role in roles]


def _local(name: str, value: Any, cuts: dict, roles: list, mesh, is_written: bool):
    """The local part of an argument, redistributed as the call needs it."""
    if isinstance(value, (list, tuple)):
        return [_local(name, each, cuts, roles, mesh, is_written) for each in value]
    if not hasattr(value, "placements"):  # no DTensor
        return value
    needed = _placements(cuts.get(name, {}), roles)
    if list(value.placements) != needed:
        if is_written:
            raise ValueError(
                f"{name}: written, with placements {value.placements}; accepted here: {tuple(needed)}; a tensor that "
                "is written keeps its placements"
            )
        # Below autograd. Without detach(), a nested autograd function of torch 2.11 calls detach_, which DTensors lack.
        value = value.detach().redistribute(mesh, needed)
    return value.to_local()


def _global(result: Any, name: str, call: dict, cuts: dict, roles: list, mesh):
    """The result of a rank as a DTensor, a part of the whole result."""
    from torch.distributed.tensor import DTensor

    if isinstance(result, list):
        return [_global(each, name, call, cuts, roles, mesh) for each in result]
    cut = cuts.get(name, {})
    if result.shape == (0,):  # no log-sum-exp was asked for, or the call has no sink
        cut = {}
    shape, leading = list(result.shape), _leading(cuts)
    for at, role in enumerate(roles):
        dim = cut.get(role, _SUM)
        if dim is _SUM:
            continue
        if role == "batch":  # uneven
            shape[dim] = call[leading].shape[cuts[leading][role]]
        else:
            shape[dim] *= mesh.size(at)
    stride = torch.empty(shape, device="meta").stride()
    placements = _placements(cut, roles)
    return DTensor.from_local(
        result, mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride
    )


# --- how calls may be cut


def cuts_of_attention(call: dict) -> dict:
    """Cuts for the operators in library.py."""
    q = call["q"]
    of_rows = {"heads": 1} if q.dim() == 3 else {"batch": 0, "heads": 2}
    cuts = dict.fromkeys(("q", "out", "q_rope", "-> out"), of_rows)
    cuts["-> lse"] = {"heads": 0} if q.dim() == 3 else {"batch": 0, "heads": 1}
    if call.get("return_max"):  # the largest scores come after it
        cuts["-> lse"] = {"batch": 1, "heads": 2}
    cuts |= dict.fromkeys(_OF_SEQUENCES, {"batch": 0})
    cuts["learnable_sink"] = {"heads": 0}
    if call.get("k_rope_page_table") is None:
        cuts["k_rope"] = {"batch": 0}
    cached = "k_cache" in call
    for name in ("k", "v", "k_cache", "v_cache"):
        if call.get(name) is not None:
            is_new = cached and name in ("k", "v")
            cuts[name] = _cut_of_keys(call[name], {} if is_new else call)
    forbidden = _forbidden(call)
    return {
        name: {role: dim for role, dim in cut.items() if role not in forbidden}
        for name, cut in cuts.items()
    }


def _cut_of_keys(keys, call: dict) -> dict:
    """Cuts for keys or values in the layout of the call; new rows of a cache are dense or packed."""
    if keys.dim() == 3:
        cut = {"heads": 1}
    elif call.get("page_table") is not None:
        cut = {"heads": 1 if call.get("kv_layout") == "HND" else 2}
    elif call.get("cache_batch_idx") is not None:  # it maps sequences to rows of the cache
        cut = {"heads": 2}
    else:
        cut = {"batch": 0, "heads": 2}
    if keys.shape[cut["heads"]] == 1:  # every head of q sees it
        del cut["heads"]
    return cut


def cuts_of_gradients(call: dict) -> dict:
    """Cuts for the operators of the backward pass: those of the forward pass that it belongs to, and of gradients."""
    cuts = cuts_of_attention(call)
    cuts["dout"] = cuts["-> out"]
    cuts["lse"] = cuts["dlse"] = cuts["-> lse"]
    for gradient, name in _GRADIENTS.items():
        cut = cuts.get(name, {})
        cuts[gradient] = cuts[f"-> {gradient}"] = {role: cut.get(role, _SUM) for role in cuts["q"]}
    return cuts


def cuts_of_merge(call: dict) -> dict:
    """Cuts for merge: each row is merged independently, with all of its parts on one rank."""
    if call["outs"].dim() == 4:  # packed
        outs, lses = {"heads": 2}, {"heads": 1}
    else:
        outs, lses = {"batch": 1, "heads": 3}, {"batch": 1, "heads": 2}
    cuts = {"outs": outs, "lses": lses, "sink": {"heads": 0}}
    for name, cut in (("-> out", outs), ("-> lse", lses)):
        cuts[name] = {role: dim - 1 for role, dim in cut.items()}
    return cuts


def cuts_of_nothing(call: dict) -> dict:
    """Every tensor is whole on every rank."""
    return {next(name for name, _ in _tensors(call)): {}}


def _forbidden(call: dict) -> set[str]:
    """Cuts with which a rank would need data of other ranks."""
    scales = [call[name] for name in _SCALES if call.get(name) is not None]
    listed = any(call.get(name) is not None for name in NAMES[BLOCKS])
    if listed or any(scale.numel() != 1 for scale in scales):
        return {"batch", "heads"}
    functions = [function_of(name, call[name]) for name in ("score_mod", "mask_mod")]
    parts = [part for function in functions if function is not None for part in function.parts]
    forbidden = set().union(*map(_counted_by, parts))
    if call["q"].dim() == 3 or any(call.get(name) is not None for name in _OFFSETS):
        forbidden.add("batch")
    shares_rows = call.get("page_table") is not None or call.get("cache_batch_idx") is not None
    if (
        "k_cache" in call and shares_rows
    ):  # every rank would write its own sequences into its own replica
        forbidden.add("batch")
    return forbidden


def _counted_by(function: ScoreMod) -> set[str]:
    """Cuts that a function would notice: a rank counts its own sequences and heads from 0."""
    traced = function.function
    if isinstance(traced, Traced) and traced.arguments is not None:
        return {_COUNTED[name] for name in traced.arguments if name in _COUNTED}
    same_for_all = {"batch": SAME_FOR_ALL_SEQUENCES, "heads": _SAME_FOR_ALL_HEADS}
    return {role for role, same in same_for_all.items() if not function.key.startswith(same)}
