"""The attention functions as operators of PyTorch, which tracers see as one node each.

    torch.ops.cute_fa4.flash_attn                  (q, k, v, *, ...) -> (out, lse)
    torch.ops.cute_fa4.flash_attn_out              (out!, q, k, v, *, ...) -> lse
    torch.ops.cute_fa4.flash_attn_varlen           the same for flash_attn_varlen_func, and caches only read
    torch.ops.cute_fa4.flash_attn_varlen_out
    torch.ops.cute_fa4.flash_attn_append           (q, k_cache!, v_cache!, k, v, cache_seqlens, *, ...) -> (out, lse);
                                                   of a cache with block scales k_block_scale!, v_block_scale! too
    torch.ops.cute_fa4.flash_attn_append_out
    torch.ops.cute_fa4.flash_attn_append_scales    the same where k_descale! and v_descale! are of tokens, and written
    torch.ops.cute_fa4.flash_attn_append_scales_out
    torch.ops.cute_fa4.flash_mla                   (q, latent_cache, page_table, seqused_k, *, ...) -> (out, lse
                                                   of the keys, without a sink)
    torch.ops.cute_fa4.flash_mla_out
    torch.ops.cute_fa4.flash_attn_backward         (dout, q, k, v, out, lse, *, ...) -> (dq, dk, dv, dsink)
    torch.ops.cute_fa4.flash_attn_backward_out     (the same, dq, dk, dv, accumulate) -> dsink
    torch.ops.cute_fa4.flash_attn_backward_aux     (the same, wanted) -> gradients of aux_tensors[i] for i in wanted
    torch.ops.cute_fa4.block_tiles                 (lists of small blocks, *, ...) -> (lists of tiles, kinds of units)
    torch.ops.cute_fa4.merge                       (outs, lses, sink, *, dtype) -> (out, lse)
    torch.ops.cute_fa4.mqa_logits                  (q, k, k_scale, weights, starts, ends, *, clean) -> logits
    torch.ops.cute_fa4.paged_mqa_logits            (q, cache, weights, lengths, table, *, width, clean) -> logits
    torch.ops.cute_fa4.topk_indices                (logits, starts, ends, *, k) -> indices

The public functions call these when something traces them (cute_fa4/calls/operands/tracing.py), and run directly
otherwise:

    schemas.py    schemas, from the table of a call's tensors
    library.py    what an operator does on CPU and CUDA tensors: as the public functions
    fakes.py      what it returns for tensors without data, and what it refuses there
    routes.py     the arguments of a public function -> those of its operator
    spelling.py   masks and score functions as strings, which is what a schema can hold
    refusals.py   what a refusal looks like while torch.compile traces
    gradients.py  the derivative of the first two, and its own operator
    merge.py      the merge of partial results: its schema, on real tensors and on fakes
    indexer.py    the same for the lightning indexer
    tiles.py      the conversion of lists of small blocks, likewise
    sharding.py   the part of a call with DTensors that each rank computes alone
    flops.py      floating-point operations of a call, for torch.utils.flop_counter

lse has no element where it was not asked for. Importing this package registers the operators.
"""

from cute_fa4.operators import flops, indexer, merge, tiles  # noqa: F401  importing them registers the operators
from cute_fa4.operators.library import OPERATORS

__all__ = ["OPERATORS"]

flops.register(OPERATORS)
