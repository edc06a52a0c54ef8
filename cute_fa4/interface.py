"""flash_attn_func: torch tensors in, torch tensors out.

check      argument_checks.py        metadata only: refusals come before any compile
           call_options.py           masks, score functions, sinks
choose     sm100/choose_config.py    dtype, head dim, mask, LSE, arch -> FA4Config, the compile key
compile    compile_cache.py          once per FA4Config and executor; sizes are bound at each call
launch     launch.py                 CUDA tensors: the kernel on torch's current stream
                                     CPU tensors: the same host code and PTX, executed by cute_fa4.emulator
repeat     call_plans.py             a call like an earlier one goes from its key to the launch
"""

from __future__ import annotations

import torch

from cute_fa4.call_plans import attend
from cute_fa4.launch import EmulatorWarning
from cute_fa4.masks import BoundMask
from cute_fa4.tracing import is_traced, through_operator
from cute_fa4.varlen import prepare

__all__ = ["EmulatorWarning", "flash_attn_func"]


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] | None = (None, None),
    mask: BoundMask | None = None,
    key_limit: torch.Tensor | None = None,
    learnable_sink: torch.Tensor | None = None,
    softcap: float | None = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    score_mod=None,
    mask_mod=None,
    aux_tensors=None,
    block_sparse_tensors=None,
    return_lse: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """softmax(softmax_scale * q k^T) v, for each batch and head.

    q             (batch, seqlen_q, heads_q, head_dim), bf16 or fp16
    k, v          (batch, seqlen_k, heads_kv, head_dim); heads_q is a multiple of heads_kv,
                  query head h reads key/value head h // (heads_q / heads_kv)
    softmax_scale positive; None: head_dim ** -0.5
    causal        query i sees keys j <= i + seqlen_k - seqlen_q: the last query sees every key
    window_size   (left, right): query i sees keys from i + seqlen_k - seqlen_q - left to ... + right;
                  None or -1: that side is open. With causal, right is 0
    mask          a mask of cute_fa4.masks, in addition to these
    key_limit     (batch,) int32: keys from here on are hidden (padding), positions stay
    learnable_sink  (heads_q,), f32, bf16 or fp16: a score that takes weight and has no value
    softcap       0 or None: off; otherwise scores become softcap * tanh(score / softcap)
    pack_gqa      the query heads of a group share a tile of 128 rows; the group must divide 128.
                  None: where it saves CTAs. The results are the same
    score_mod     score_mod(score, batch, head, q_idx, kv_idx, aux) -> score, traced into the kernel;
                  cute_fa4.score_mods has some
    mask_mod      mask_mod(batch, head, q_idx, kv_idx, aux) -> whether the key is visible
    aux_tensors   what these read as aux[0], aux[1], ...
    return_lse    also return the log-sum-exp of the scaled scores
    out           written in place and returned; shape, dtype and device of q, memory of its own

    head_dim is 64, 72, 80, 96 or 128. The last dimension is contiguous; the other strides are any
    multiples of 8 elements, so slices and transposed views need no copy.

    num_splits and block_sparse_tensors have the meaning they have in flash-attn-4; only their "off"
    values are built. deterministic changes nothing: the forward pass always is. Parameters after v
    are keyword-only, because their order differs between the packages that have a function of this
    name.

    Returns out, or (out, lse) with return_lse=True; lse is float32, natural logarithm, of shape
    (batch, heads_q, seqlen_q). A query that sees no key has out 0 and lse -inf, or the sink.

    CUDA tensors (compute capability 10.0 or 10.3) are launched on torch's current stream without
    synchronising. CPU tensors are executed by the emulator, with one EmulatorWarning per process.

    Raises TypeError and ValueError with the argument, its value and what is accepted;
    NotImplementedError for parameters and gradients that are not built. capabilities() answers the
    same questions beforehand.
    """
    if is_traced(q):
        return through_operator("dense", flash_attn_func, locals())
    lengths = None if key_limit is None else (None, None, None, None, key_limit, None)
    numbers = (softmax_scale, causal, softcap, None, None)
    choices = (
        mask, num_splits, pack_gqa, score_mod, mask_mod, block_sparse_tensors, "NHD", False, return_lse,
    )  # fmt: skip
    return attend(
        prepare,
        (q, k, v, out, lengths, learnable_sink, aux_tensors, None),
        (window_size, numbers, choices),
    )
