"""torch.ops.cute_fa4.merge: the exact merge of partial results, as a tracer sees it."""

from __future__ import annotations

import torch

from cute_fa4.calls.split_keys.merge import check_parts, merged
from cute_fa4.operators import sharding
from cute_fa4.operators.refusals import in_graph
from cute_fa4.operators.registration import defined, plain

_SCHEMA = "merge(Tensor outs, Tensor lses, Tensor? sink=None, *, ScalarType? dtype=None) -> (Tensor out, Tensor lse)"
_TAGS = (torch.Tag.pt2_compliant_tag,)


def _run(outs, lses, sink=None, *, dtype=None):
    return merged(plain(outs), plain(lses), dtype, None if sink is None else plain(sink))


def _fake(outs, lses, sink=None, *, dtype=None):
    in_graph(check_parts, outs=outs, lses=lses, dtype=dtype, sink=sink)
    out = outs.new_empty(outs.shape[1:], dtype=dtype)
    return out, lses.new_empty(lses.shape[1:], dtype=torch.float32)


def _batched(info, in_dims, outs, lses, sink=None, *, dtype=None):
    """torch.vmap: examples become further rows of one merge; those with sinks of their own are merged in turn."""
    batch = info.batch_size
    if sink is not None and in_dims[2] is not None:
        given = list(zip((outs, lses, sink), in_dims, strict=True))
        found = [
            merge(*(x if dim is None else x.select(dim, n) for x, dim in given), dtype=dtype)
            for n in range(batch)
        ]
        return tuple(torch.stack(each) for each in zip(*found, strict=True)), (0, 0)

    def rows(tensor, dim):
        """Move examples to the dimension after the parts."""
        return (
            tensor[:, None].expand(tensor.shape[0], batch, *tensor.shape[1:])
            if dim is None
            else tensor.movedim(dim, 1)
        )

    outs, lses = rows(outs, in_dims[0]), rows(lses, in_dims[1])
    packed = outs.dim() == 5  # (parts, examples, total_q, heads, head_dim) is a dense merge
    if not packed:
        outs, lses = outs.flatten(1, 2), lses.flatten(1, 2)
    out, lse = merge(outs, lses, sink, dtype=dtype)
    if not packed:
        out, lse = out.unflatten(0, (batch, -1)), lse.unflatten(0, (batch, -1))
    return (out, lse), (0, 0)


_library = defined(_SCHEMA, _TAGS, _run, _fake, batched=_batched)
merge = torch.ops.cute_fa4.merge.default
sharding.add_rule(merge, sharding.cuts_of_merge)
