"""Cases of test_sharding.py: operators on DTensors, in the processes of a pool."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from unittest import mock

import torch


def sharded(rank: int, group, name: str, tensors: dict, options: dict, kinds: dict, moved: dict):
    """An operator on tensors of all ranks and, for each kind of shards, on DTensors: what both returned and wrote.

    kinds: kind -> the dimension by which the tensors named in `moved` are cut; moved: name -> kind -> dimension, or
    "sum": parts of a sum.
    Attention is by its definition in the place of the kernel: this asks who computes what.
    """
    from torch.distributed.device_mesh import DeviceMesh

    from cute_fa4.calls import repeat
    from cute_fa4.score_mods import ScoreMod

    operator = getattr(torch.ops.cute_fa4, name).default
    written = [a.name for a in operator._schema.arguments if a.alias_info is not None]
    mesh = DeviceMesh.from_group(group, "cpu")
    if callable(options.get("score_mod")):
        options = options | {"score_mod": ScoreMod.of(options["score_mod"]).key}

    def called(given: dict) -> list:
        results = operator(**given, **options)
        results = [results] if isinstance(results, torch.Tensor) else list(results)
        return results + [given[each] for each in written if each in given]

    with by_definition():
        expected = called({n: _copied(x) for n, x in tensors.items()})
        found = {}
        for kind in kinds:
            given = {}
            for n, x in tensors.items():
                given[n] = _distributed(_copied(x), mesh, moved.get(n, {}).get(kind))
            results = called(given)
            equal = [_is_same(a, b) for a, b in zip(expected, results, strict=True)]
            found[kind] = all(equal), [str(x.placements[0]) for x in results]
    repeat.clear()
    return found


def by_definition():
    """Attention and its gradients by their definition, in the place of kernels."""
    from cute_fa4 import compile_cache
    from tests.docs import definition

    return mock.patch.object(compile_cache, "function_for", definition.compiled)


def _copied(x):
    return [each.clone() for each in x] if isinstance(x, list) else x.clone()


def _distributed(x, mesh, dim):
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    if isinstance(x, list):
        return [_distributed(each, mesh, dim) for each in x]
    if dim == "sum":
        part = x if mesh.get_local_rank() == 0 else torch.zeros_like(x)
        return DTensor.from_local(part, mesh, [Partial()])
    placements = [Replicate() if dim is None else Shard(dim)]
    if x.is_floating_point() and x.element_size() == 1:  # gloo does not send these
        part = x if dim is None else x.tensor_split(mesh.size(), dim)[mesh.get_local_rank()]
        return DTensor.from_local(
            part, mesh, placements, run_check=False, shape=x.shape, stride=x.stride()
        )
    return distribute_tensor(x, mesh, placements)


def _is_same(expected, found) -> bool:
    """The same bits, or for parts of a sum the same within the error of a sum of two."""
    whole = found.full_tensor()
    if expected.shape != whole.shape or expected.dtype != whole.dtype:
        return False
    if not any(placement.is_partial() for placement in found.placements):
        return torch.equal(expected, whole)
    error = (expected.double() - whole.double()).abs().max()
    return bool(error <= 2 * torch.finfo(whole.dtype).eps * expected.double().abs().max())


def on_a_grid(rank: int, group, tensors: dict):
    """flash_attn of four ranks: sequences along one dimension of the mesh, heads along the other. With gradients."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2))
    with by_definition():
        return differentiated(mesh, tensors, {}, dict.fromkeys(("q", "k", "v"), (0, 2)))


def differentiated(mesh, tensors: dict, options: dict, cut: dict, compiled: bool = False) -> dict:
    """Name of a result or gradient -> whether it is that of plain tensors, and its placements.

    tensors  by the names of the call's arguments; "aux": the one of aux_tensors
    cut      the dimensions by which DTensors are cut on each dimension of the mesh; not named: whole on every rank
    """
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    import cute_fa4
    from cute_fa4.calls import repeat

    packed = "cu_seqlens_q" in tensors
    function = cute_fa4.flash_attn_varlen_func if packed else cute_fa4.flash_attn_func
    whole = [Replicate()] * mesh.ndim
    placed = {name: [Shard(dim) for dim in dims] for name, dims in cut.items()}

    def outcome(function, of_name: Callable) -> dict:
        """of_name(x, name): the tensor of a name as it is called with."""
        generator = torch.Generator().manual_seed(5)
        given = {name: of_name(x.clone(), name) for name, x in tensors.items()}
        wanting = {n: x.requires_grad_() for n, x in given.items() if x.is_floating_point()}
        call = given | options | dict(return_lse=True)
        if "aux" in call:
            call["aux_tensors"] = [call.pop("aux")]
        lists = {n: call.pop(n) for n in cute_fa4.BlockSparseTensors._fields if n in call}
        if lists:
            call["block_sparse_tensors"] = cute_fa4.BlockSparseTensors(**lists)
        results = function(**call)
        weights = (torch.randn(x.shape, generator=generator) for x in results)
        of_out, of_lse = ((x * of_name(w, "")).sum() for x, w in zip(results, weights, strict=True))
        (of_out + of_lse).backward()
        found = dict(zip(("out", "lse"), results, strict=True))
        return found | {f"d{name}": x.grad for name, x in wanting.items()}

    expected = outcome(function, lambda x, name: x)
    if compiled:
        torch._dynamo.reset()
        function = torch.compile(function, backend="aot_eager", fullgraph=True)
    found = outcome(function, lambda x, name: distribute_tensor(x, mesh, placed.get(name, whole)))
    repeat.clear()
    return {
        name: (_is_same(expected[name].detach(), x.detach()), [str(p) for p in x.placements])
        for name, x in found.items()
    }


def differentiated_on_two(rank: int, group, tensors: dict, options: dict, cuts: list, way: str):
    """differentiated() of a mesh of one dimension for each of cuts. way: "definition", "compiled", "emulator"."""
    from torch.distributed.device_mesh import DeviceMesh

    mesh = DeviceMesh.from_group(group, "cpu")
    with nullcontext() if way == "emulator" else by_definition():
        return [differentiated(mesh, tensors, options, cut, way == "compiled") for cut in cuts]


class Layer(torch.nn.Module):
    """Attention between projections, in float32 around the call."""

    def __init__(self, heads: int = 4, heads_kv: int = 2, width: int = 32):
        super().__init__()
        self.q = torch.nn.Linear(width, heads * 64, bias=False)
        self.k, self.v = (torch.nn.Linear(width, heads_kv * 64, bias=False) for _ in "kv")
        self.out = torch.nn.Linear(heads * 64, width, bias=False)
        self.sink = torch.nn.Parameter(torch.zeros(heads))

    def forward(self, x):
        from cute_fa4 import flash_attn_func

        q, k, v = (
            project(x).unflatten(-1, (-1, 64)).bfloat16() for project in (self.q, self.k, self.v)
        )
        out = flash_attn_func(q, k, v, causal=True, learnable_sink=self.sink)
        return self.out(out.flatten(-2).float())


def tensor_parallel(rank: int, group) -> dict:
    """A step of training of a layer whose heads are on two ranks: for each parameter, its largest step and error."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = DeviceMesh.from_group(group, "cpu")
    torch.manual_seed(0)
    plain = Layer()
    before = {name: x.detach().clone() for name, x in plain.named_parameters()}
    parallel = Layer()
    parallel.load_state_dict(plain.state_dict())
    by_heads = dict.fromkeys("qkv", ColwiseParallel(use_local_output=False))
    parallelize_module(parallel, mesh, by_heads | {"out": RowwiseParallel()})
    parallel.sink = torch.nn.Parameter(distribute_tensor(parallel.sink.detach(), mesh, [Shard(0)]))
    x, wanted = torch.randn(2, 2, 24, 32)
    with by_definition():
        for layer in (plain, parallel):
            (layer(x) - wanted).square().sum().backward()
            torch.optim.SGD(layer.parameters(), lr=0.1).step()
    after = {name: x.detach().full_tensor() for name, x in parallel.named_parameters()}
    return {
        name: [float((x.detach() - y).abs().max()) for y in (before[name], after[name])]
        for name, x in plain.named_parameters()
    }
