"""Gradients on a Hopper GPU: calls of the public functions whose q, k and v want gradients.

Each problem must satisfy:

    every gradient   within allowed_gradient_errors of float64 (reference.py), a sequence at a time
    two launches     the same bits: nothing is added with atomics
    spare rows       rows of packed tensors that belong to no sequence have gradients of zero; their K and V are NaN
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from functools import partial
from itertools import accumulate

import torch

from cute_fa4 import BlockSparseTensors, flash_attn_func, flash_attn_varlen_func
from cute_fa4.block_sparsity import FULL, PARTIAL, listed
from cute_fa4.hopper.check import WrongResult, bits
from cute_fa4.hopper.gradient_cases import Problem
from cute_fa4.hopper.variant import DTYPES
from cute_fa4.reference import allowed_gradient_errors, gradients_float64, max_error

NAMES = ("dq", "dk", "dv", "dsink")
KINDS = (PARTIAL, FULL)  # of listed blocks, in the order of the fields of BlockSparseTensors
SPARE_ROWS = 200  # after the last sequence of packed tensors: more than a tile


@dataclass
class Call:
    """Tensors of a problem: q, k, v and the gradients of out and of the log-sum-exp.

    kinds: 0, PARTIAL or FULL for each block of queries and keys, (1, heads, query blocks, key blocks)
    """

    problem: Problem
    tensors: tuple[torch.Tensor, ...]
    dlse: torch.Tensor | None
    sink: torch.Tensor | None = None
    kinds: torch.Tensor | None = None

    def launch(self) -> tuple[torch.Tensor, ...]:
        """(dq, dk, dv) of a forward and a backward pass, and dsink if there are sinks."""
        problem, (*inputs, dout) = self.problem, self.tensors
        inputs = [x.detach().requires_grad_() for x in inputs]
        options = dict(window_size=problem.window, return_lse=problem.lse, softcap=problem.softcap)
        wanted = list(inputs)
        if self.sink is not None:
            wanted.append(self.sink.detach().requires_grad_())
            options["learnable_sink"] = wanted[-1]
        function = flash_attn_func
        if problem.packed:
            function = flash_attn_varlen_func
            for name, lengths in (("q", problem.queries), ("k", problem.keys)):
                options[f"cu_seqlens_{name}"] = _offsets(lengths, dout.device)
                options[f"max_seqlen_{name}"] = max(lengths)
        if self.kinds is not None:
            lists = (x for kind in KINDS for x in listed(self.kinds == kind))
            options["block_sparse_tensors"] = BlockSparseTensors(*lists, block_size=problem.blocks)
            options["mask_mod"] = hides
        if problem.added:
            return self._added(function, options)
        results = function(*inputs, **options)
        if not problem.lse:
            return torch.autograd.grad(results, wanted, dout)
        return torch.autograd.grad(results, wanted, (dout, self.dlse))

    def _added(self, function, options: dict) -> tuple[torch.Tensor, ...]:
        """(dq, dk, dv) that were added to ones, less these."""
        *inputs, dout = self.tensors
        out, lse = function(*inputs, **options | {"return_lse": True})
        sums = [torch.ones_like(x, dtype=torch.float32) for x in inputs]
        lengths = {name: x for name, x in options.items() if "seqlen" in name}
        torch.ops.cute_fa4.flash_attn_backward_out(
            *(dout, *inputs, out, lse),
            **dict(dlse=self.dlse, softmax_scale=inputs[0].shape[-1] ** -0.5, mask="Causal()"),
            **dict(zip(NAMES, sums, strict=False)),
            **lengths,
            accumulate=True,
        )
        return tuple(x - 1.0 for x in sums)

    def reference_options(self, rows: int, keys: int) -> dict:
        """Options of gradients_float64 for a sequence of so many queries and keys."""
        found: dict = dict(window_size=self.problem.window)
        if cap := self.problem.softcap:
            found["score_mod"] = lambda scores: cap * torch.tanh(scores / cap)
        if self.sink is not None:
            found["sink"] = self.sink
        if self.kinds is not None and self.problem.blocks is not None:
            kinds = self.kinds
            for dim, size in enumerate(self.problem.blocks, start=2):
                kinds = kinds.repeat_interleave(size, dim)
            kinds = kinds[:, :, :rows, :keys]
            heads, queries, columns = (
                torch.arange(n, device=kinds.device) for n in kinds.shape[1:]
            )
            shown = hides(0, heads[:, None, None], queries[:, None], columns)
            found["visible"] = (kinds == FULL) | (kinds == PARTIAL) & shown
        return found

    def sequences(self):
        """(place of its queries, of its keys, of its LSE) of each sequence."""
        if not self.problem.packed:
            return [(i, i, i) for i in range(len(self.problem.queries))]
        starts = [list(accumulate(n, initial=0)) for n in (self.problem.queries, self.problem.keys)]
        rows = [list(map(slice, s, s[1:])) for s in starts]
        return [(q, k, (slice(None), q)) for q, k in zip(*rows, strict=True)]


def hides(batch, head, q_idx, kv_idx):
    """The mask function of partial blocks, which hides every third key."""
    return (q_idx + kv_idx + head) % 3 != 0


def _offsets(lengths, device) -> torch.Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)


def call(problem: Problem, device: str, seed: int = 0) -> Call:
    """Random inputs. Rows of packed tensors after the last sequence are NaN in K and V, and in dout."""
    random = torch.Generator(device).manual_seed(seed)
    (heads_q, heads_kv), (depth, depth_v) = problem.heads, problem.depths
    of_q, of_k = (problem.queries, heads_q, depth), (problem.keys, heads_kv, depth)
    of_v, of_out = (problem.keys, heads_kv, depth_v), (problem.queries, heads_q, depth_v)

    def values(lengths, *rest):
        rows = (sum(lengths) + SPARE_ROWS,) if problem.packed else (len(lengths), lengths[0])
        made = torch.randn((*rows, *rest), generator=random, device=device)
        if problem.packed:
            made[sum(lengths) :] = math.nan
        return made.to(DTYPES[problem.dtype])

    tensors = tuple(values(*side) for side in (of_q, of_k, of_v, of_out))
    dlse = None
    if problem.lse:
        *rows, heads, _ = tensors[3].shape
        shape = (heads, *rows) if problem.packed else (rows[0], heads, rows[1])
        dlse = torch.randn(shape, generator=random, device=device)
    sink = torch.randn(heads_q, generator=random, device=device) if problem.sink else None
    kinds = None
    if problem.blocks is not None:
        rows = zip((max(problem.queries), max(problem.keys)), problem.blocks, strict=True)
        shape = (1, heads_q, *(-(-longest // size) for longest, size in rows))
        kinds = torch.randint(0, FULL + 1, shape, generator=random, device=device)
    return Call(problem, tensors, dlse, sink, kinds)


def check(problem: Problem, device: str = "cuda", seed: int = 0) -> dict:
    """Run a problem and return its row of the result. WrongResult where a law in the head of this module is broken."""
    made = call(problem, device, seed)
    begin = time.perf_counter()
    first, again = made.launch(), made.launch()
    seconds = (time.perf_counter() - begin) / 2
    for name, a, b in zip(NAMES, first, again, strict=False):
        if not bits(a).equal(bits(b)):
            raise WrongResult(f"{problem.title}: {name} differs between two launches")
    of_allowed = 0.0
    for places in made.sequences():
        of_allowed = max(of_allowed, _measured(made, first, places))
    if problem.sink:
        of_allowed = max(of_allowed, _measured_of_sinks(made, first[-1]))
    if problem.packed:
        ends = sum(problem.queries), sum(problem.keys), sum(problem.keys)
        for name, x, end in zip(NAMES, first, ends, strict=False):
            if x[end:].any():
                raise WrongResult(f"{problem.title}: {name} of rows of no sequence is not 0")
    return dict(**asdict(problem), title=problem.title, of_allowed=of_allowed, seconds=seconds)


def _measured(made: Call, gradients, places) -> float:
    """The largest error of a sequence's gradients, as a share of what is allowed."""
    of_q, of_k, of_lse = places
    q, k, v, dout = (
        x[at][None] for x, at in zip(made.tensors, (of_q, of_k, of_k, of_q), strict=True)
    )
    if not q.shape[1] or not k.shape[1]:
        if any(x[at].any() for x, at in zip(gradients, (of_q, of_k, of_k), strict=True)):
            raise WrongResult(
                f"{made.problem.title}: gradients of a sequence without rows are not 0"
            )
        return 0.0
    dlse = None if made.dlse is None else made.dlse[of_lse][None]
    exact, allowed = _exact_and_allowed(made, (q, k, v, dout), dlse)
    found = (x[at][None] for x, at in zip(gradients, (of_q, of_k, of_k), strict=False))
    return max(map(partial(_share, made), NAMES, found, exact, allowed))


def _measured_of_sinks(made: Call, dsink) -> float:
    """The same of the gradient of sinks, to which all sequences add."""
    exact, allowed = _exact_and_allowed(made, made.tensors, made.dlse)
    return _share(made, NAMES[-1], dsink, exact[-1], allowed[-1])


def _exact_and_allowed(made: Call, tensors, dlse) -> tuple:
    q, k, v, dout = tensors
    options = made.reference_options(q.shape[1], k.shape[1])
    exact = gradients_float64(q, k, v, dout, dlse, **options)
    return exact, allowed_gradient_errors(q, k, v, dout, dlse, **options)


def _share(made: Call, name: str, found, exact, allowed: float) -> float:
    error = max_error(found, exact)
    if not error <= allowed:
        raise WrongResult(
            f"{made.problem.title}: {name} is off by {error:.2e}, allowed {allowed:.2e}"
        )
    return error / allowed
