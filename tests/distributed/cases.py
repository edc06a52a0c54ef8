"""Functions that run in the processes of a pool: imported by the server that they are forked from."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from unittest import mock

import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from cute_fa4.distributed import (
    backends,
    backward,
    context_parallel_attention,
    decode_attention,
    groups,
    layouts,
    local_lengths,
    schedule,
    shard,
    transport,
)


def tensors(
    seed: int, q_shape, k_shape, dtype=torch.float32, head_dim_v=None
) -> list[torch.Tensor]:
    """q, k and v of all ranks together; the same in every process."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(shape, generator=generator).to(dtype) for shape in (q_shape, k_shape, k_shape)
    )
    return [q, k, v[..., :head_dim_v].contiguous()]


def as_called(options: dict) -> tuple[dict, int | None]:
    """The options of a case without its head_dim_v, which is no argument of a call -> (options, head_dim_v)."""
    options = dict(options)
    head_dim_v = options.pop("head_dim_v", None)
    return options, head_dim_v


def attend(rank: int, group, q_shape, k_shape, dtype, options: dict):
    """(out, lse) of a rank's rows, and the bytes that it sent."""
    ranks = torch.distributed.get_world_size(group)
    dim = 1 if len(q_shape) == 4 else 0
    order = options.get("order", "zigzag")
    options, head_dim_v = as_called(options)
    whole = tensors(0, q_shape, k_shape, dtype, head_dim_v)
    mine = [shard(x, rank, ranks, order=order, dim=dim) for x in whole]
    with transport.counting() as counter:
        out, lse = context_parallel_attention(*mine, group=group, return_lse=True, **options)
    return out, lse, counter.sent


def gradients_of_results(q_shape, dtype, with_lse: bool, head_dim_v=None) -> list:
    """dout and dlse of all ranks together, dlse as (batch, rows, heads) or None; the same in every process."""
    generator = torch.Generator().manual_seed(3)
    dout = torch.randn(q_shape, generator=generator).to(dtype)[..., :head_dim_v].contiguous()
    return [dout, torch.randn(q_shape[:-1], generator=generator) if with_lse else None]


def differentiate(rank: int, group, q_shape, k_shape, dtype, options: dict, with_lse: bool = False):
    """(dq, dk, dv, dsink or None) of a rank, and the bytes that it sent backward."""
    ranks = torch.distributed.get_world_size(group)
    cut = dict(order=options.get("order", "zigzag"), dim=len(q_shape) - 3)
    options, head_dim_v = as_called(options)
    whole = tensors(0, q_shape, k_shape, dtype, head_dim_v)
    whole += gradients_of_results(q_shape, dtype, with_lse, head_dim_v)
    q, k, v, dout, dlse = (None if x is None else shard(x, rank, ranks, **cut) for x in whole)
    wanting = [x.requires_grad_() for x in (q, k, v)]
    if options.get("learnable_sink") is not None:
        options["learnable_sink"] = options["learnable_sink"].clone().requires_grad_()
        wanting.append(options["learnable_sink"])
    results = context_parallel_attention(q, k, v, group=group, return_lse=with_lse, **options)
    results, given = (results, (dout, dlse.mT)) if with_lse else ((results,), (dout,))
    with transport.counting() as counter:
        found = torch.autograd.grad(results, wanting, given)
    return *found, *[None] * (4 - len(found)), counter.sent


def twice(rank: int, group, *arguments):
    """Whether two runs of differentiate() have the same bits."""
    first, second = (differentiate(rank, group, *arguments)[:4] for _ in range(2))
    return all(a is b is None or torch.equal(a, b) for a, b in zip(first, second, strict=True))


def wanting(rank: int, group, of_rank: list):
    """A call of this rank's arguments with gradients: (shape, dtype, names of what wants one, options) each."""
    shape, dtype, names, options = of_rank[rank]
    given = dict(zip("qkv", tensors(0, shape, shape, dtype), strict=True))
    options = dict(options)
    if "learnable_sink" in names:
        options["learnable_sink"] = torch.zeros(shape[-2])
    for name in names:
        {**given, **options}[name].requires_grad_()
    out = context_parallel_attention(*given.values(), group=group, **options)
    return out, [{**given, **options}[name] for name in names]


def refused(rank: int, group, *arguments):
    """The same, which raises."""
    return wanting(rank, group, *arguments)[0].detach()


def twice_differentiated(rank: int, group, shape):
    out, (q,) = wanting(rank, group, [(shape, torch.float32, ["q"], {"backend": "sdpa"})] * 2)
    torch.autograd.grad(out.sum(), q, create_graph=True)


def crossed(rank: int, group, shape):
    """Two calls, through which the ranks go backward in different orders."""
    arguments = [(shape, torch.float32, ["q"], {"backend": "sdpa"})] * 2
    made = [wanting(rank, group, arguments) for _ in range(2)]
    out, wants = made[rank]
    torch.autograd.grad(out.sum(), wants)


def transformed(rank: int, group, name: str, transform: str):
    """A call of rank 1 inside of a transform, and of rank 0 without."""
    q, k, v = (x.float() for x in tensors(0, *[(1, 16, 2, 64)] * 2, torch.bfloat16))
    lengths = torch.tensor([16], dtype=torch.int32)
    functions = {
        "context_parallel_attention": lambda x: context_parallel_attention(
            x, k, v, group=group, backend="sdpa"
        ),
        "decode_attention": lambda x: decode_attention(
            x, k, v, lengths, group=group, heads="all", interleave=16, backend="sdpa"
        ),
    }
    function = functions[name]
    TRANSFORMS[transform if rank else "none"](function, q)


def _dual(function, x):
    with forward_ad.dual_level():
        return function(forward_ad.make_dual(x, x))


TRANSFORMS = {
    "none": lambda function, x: function(x),
    "grad": lambda function, x: torch.func.grad(lambda y: function(y).sum())(x),
    "vjp": lambda function, x: torch.func.vjp(function, x),
    "vmap": lambda function, x: torch.vmap(function)(x[None]),
    "grad of vmap": lambda function, x: torch.func.grad(
        lambda y: torch.vmap(function)(y[None]).sum()
    )(x),
    "functionalize": lambda function, x: torch.func.functionalize(function)(x),
    "jvp": lambda function, x: torch.func.jvp(function, (x,), (x,)),
    "dual numbers": _dual,
    "make_fx": lambda function, x: make_fx(function)(x),
    "jit.trace": lambda function, x: torch.jit.trace(function, x),
}


def cache_with_gradient(rank: int, group):
    q, k, v = tensors(0, (1, 1, 2, 64), (1, 16, 2, 64), torch.bfloat16)
    lengths = torch.tensor([16], dtype=torch.int32)
    decode_attention(q.requires_grad_(), k, v, lengths, group=group, heads="all", interleave=16)


class WithoutGradients:
    """A backend with the methods of the forward pass alone."""

    def check(self, *_):
        pass

    attention = merge = check


def asked(rank: int, group, of_rank: list):
    """The outcome of a call with this rank's arguments: (q_shape, k_shape, dtype, options) each."""
    q_shape, k_shape, dtype, options = of_rank[rank]
    q, k, v = tensors(0, q_shape, k_shape, dtype)
    return context_parallel_attention(q, k, v, group=group, **{"backend": "sdpa", **options})


class Ending(backends.TorchAttention):
    """A backend whose rank is gone when it has to compute."""

    def attention(self, *_):
        os.kill(os.getpid(), signal.SIGKILL)


def end(rank: int, group, who: int, arguments: tuple, computing: bool):
    """A rank ends as by SIGKILL, before the call or in it; the others make the call."""
    if rank == who and not computing:
        os.kill(os.getpid(), signal.SIGKILL)
    q_shape, k_shape, dtype, options = arguments
    backend = Ending() if rank == who else Staying()
    return asked(rank, group, [(q_shape, k_shape, dtype, {**options, "backend": backend})] * 4)


class Staying(backends.TorchAttention):
    """The same for a rank that stays."""


Staying.__name__ = Ending.__name__ = "Torch"  # the ranks compare the names of their backends


def checks_made(rank: int, group, check: str) -> int:
    """How often the ranks compared words in three calls that are alike."""
    made = []
    exchanged = groups._exchanged
    groups._exchanged = lambda *arguments: made.append(1) or exchanged(*arguments)
    try:
        for _ in range(3):
            q, k, v = tensors(0, (1, 4, 2, 64), (1, 4, 2, 64))
            context_parallel_attention(
                q, k, v, group=group, backend="sdpa", check=check, softmax_scale=0.3
            )
    finally:
        groups._exchanged = exchanged
    return len(made)


def cache_of_all(lengths: list, heads_kv: int, dtype) -> list[torch.Tensor]:
    """For each sequence its keys and values, (2, keys, heads_kv, 64); the same in every process."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(2, n, heads_kv, 64, generator=generator).to(dtype) for n in lengths]


def cache_of_rank(sequences: list, rank: int, ranks: int, interleave: int, rows: int, page: int):
    """(k, v, page table or None): a rank's share of the sequences, NaN in unwritten rows.

    rows: of a sequence. page: 0, or the rows of a page; then pages lie in an order of the rank's own.
    """
    heads, depth = sequences[0].shape[2:]
    dense = torch.full((2, len(sequences), rows, heads, depth), torch.nan, dtype=sequences[0].dtype)
    for b, sequence in enumerate(sequences):
        p = torch.arange(sequence.shape[1])
        mine = p // interleave % ranks == rank
        row = p // (interleave * ranks) * interleave + p % interleave
        dense[:, b, row[mine]] = sequence[:, mine]
    if not page:
        return (*dense, None)
    pages = dense.unflatten(2, (-1, page)).flatten(1, 2)
    order = torch.randperm(pages.shape[1], generator=torch.Generator().manual_seed(rank))
    pool = torch.empty_like(pages)
    pool[:, order] = pages
    return (*pool, order.view(len(sequences), -1).to(torch.int32))


def decode(rank: int, group, lengths: list, form: dict, dtype, options: dict):
    """(out, lse) of a rank. form: queries (a number, or one for each sequence), heads_q, heads_kv, rows, page, and
    head_dim_v (default: that of k).

    told: the lengths that the call is given, if others than those of the cache.
    """
    ranks = torch.distributed.get_world_size(group)
    sequences = cache_of_all(lengths, form["heads_kv"], dtype)
    interleave = min(options.get("interleave") or form["page"] or form["rows"], form["rows"])
    kept = form["rows"], form["page"]
    k, v, table = cache_of_rank(sequences, rank, ranks, interleave, *kept)
    v = v[..., : form.get("head_dim_v")]
    q, offsets = queries(form, len(lengths), dtype)
    heads = form["heads_q"] // ranks
    options = dict(options)
    if options.get("heads", "split") == "split":
        q = q[..., rank * heads : (rank + 1) * heads, :]
        if options.get("learnable_sink") is not None:
            options["learnable_sink"] = options["learnable_sink"][rank * heads : (rank + 1) * heads]
    used = torch.tensor(lengths, dtype=torch.int32)
    told = torch.tensor(form.get("told", lengths), dtype=torch.int32)
    assert torch.equal(
        local_lengths(used, rank, ranks, interleave),
        torch.tensor([int((torch.arange(n) // interleave % ranks == rank).sum()) for n in lengths]),
    )
    return decode_attention(
        q,
        k,
        v,
        told,
        group=group,
        page_table=table,
        cu_seqlens_q=offsets,
        return_lse=True,
        **options,
    )


def queries(form: dict, batch: int, dtype):
    """(q of all heads, cu_seqlens_q or None)."""
    generator, count = torch.Generator().manual_seed(2), form["queries"]
    if isinstance(count, int):
        q = torch.randn(batch, count, form["heads_q"], 64, generator=generator)
        return q.to(dtype), None
    offsets = torch.tensor([0, *count]).cumsum(0).to(torch.int32)
    q = torch.randn(sum(count), form["heads_q"], 64, generator=generator)
    return q.to(dtype), offsets


def sent_by_decode(rank: int, group, lengths: list, form: dict, dtype, options: dict) -> int:
    """Bytes that a rank sends for a decode step."""
    with transport.counting() as counter:
        decode(rank, group, lengths, form, dtype, options)
    return counter.sent


def under_the_manager(rank: int, group, shape: tuple, causal: bool, method: str, way: str):
    """torch's context_parallel around our function; the rows of this rank, and in training (dq, dk, dv).

    way: "functional", as torch.nn.functional has it, "compiled", the same in a graph, "direct", our own; "fullgraph"
    """
    import torch.distributed.tensor.experimental as experimental
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.experimental import _attention as manager
    from torch.nn import functional

    import cute_fa4

    mesh = DeviceMesh.from_group(group, "cpu")
    q, k, v = tensors(0, shape, shape, torch.bfloat16)
    dout, _ = gradients_of_results(shape, torch.bfloat16, False)
    kept = functional.scaled_dot_product_attention
    functional.scaled_dot_product_attention = cute_fa4.scaled_dot_product_attention
    manager.set_rotate_method(method)
    options, balanced = manager._cp_options, manager._cp_options.enable_load_balance
    options.enable_load_balance = causal  # torch refuses it for masks that need none
    try:
        with experimental.context_parallel(mesh, buffers=[q, k, v, dout], buffer_seq_dims=[2] * 4):
            module = cute_fa4 if "direct" in way else functional
            call = lambda *given: module.scaled_dot_product_attention(*given, is_causal=causal)
            if "compiled" in way:
                torch._dynamo.reset()  # graphs of an earlier case, which end at the call, are not asked again
                call = torch.compile(call, backend="eager", fullgraph="fullgraph" in way)
            wants = [x.clone().requires_grad_("training" in way) for x in (q, k, v)]
            out = call(*wants)
            if "training" in way:
                return torch.autograd.grad(out, wants, dout)
    finally:
        functional.scaled_dot_product_attention = kept
        options.enable_load_balance = balanced
    return out


def launched(rank: int, group, calls: list) -> set:
    """The configurations that calls ask for; nothing is compiled or run."""
    from cute_fa4 import compile_cache
    from cute_fa4.calls import repeat

    asked, kept = set(), compile_cache.function_for

    def note(config, executor):
        asked.add(config)
        return lambda *arguments: None

    compile_cache.function_for = note
    try:
        for function, arguments in calls:
            function(rank, group, *arguments)
    finally:
        compile_cache.function_for = kept
        repeat.clear()
    return asked


# --- planted defects: what must not pass


def _without_the_last_hop(problem):
    return schedule.hops(problem)[:-1]


def _with_a_window_one_shorter(problem, rank, distance):
    calls = schedule.ring_calls(problem, rank, distance)
    return [_shorter(c) if distance else c for c in calls]


def _shorter(call):
    left = call.band.left
    return replace(call, band=replace(call.band, left=left - 1)) if left else call


def _added(self, outs, lses):
    outs[0] += outs[1]


def _as_ranks_have_them(every, order):
    return every


def _of_the_next_rank(x, ranks):
    return _OF_RANKS(x, ranks).roll(1, 0)


def _one_part_forgotten(outs, lses):
    return _MERGED(outs[1:], lses[1:])


def _waited_for(arriving):
    for _, wait in arriving:
        wait()
    arriving.clear()


def _cut_as_ranks_have_them(whole, ranks, order):
    return whole.unflatten(0, (ranks, -1))


_OF_RANKS, _MERGED = layouts.of_ranks, backends.merged_by_torch

# Where each is planted, and by which function of this file it shows.
DEFECTS = {
    "a hop too few": (layouts, "hops", _without_the_last_hop),
    "a window one shorter on other ranks": (layouts, "ring_calls", _with_a_window_one_shorter),
    "parts added": (backends.TorchAttention, "merge", _added),
    "rows in the order of ranks": (layouts, "in_order", _as_ranks_have_them),
    "heads of another rank": (layouts, "of_ranks", _of_the_next_rank),
    "gradients of hops forgotten": (backward, "_collect", _waited_for),
    "gradients in the order of ranks": (backward, "by_rank", _cut_as_ranks_have_them),
    "one rank's part forgotten": (backends, "merged_by_torch", _one_part_forgotten),
}


def with_defect(rank: int, group, name: str, function, *arguments):
    """A function of this file while a defect is in force."""
    owner, attribute, replacement = DEFECTS[name]
    with mock.patch.object(owner, attribute, replacement):
        return function(rank, group, *arguments)
