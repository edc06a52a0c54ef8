"""The inputs of kernel selection for a checked call (sm100/choose/which_kernel.py): metadata only."""

from __future__ import annotations

from cute_fa4.calls.on_pairs import lengths_of
from cute_fa4.calls.operands.four_bits import columns_of, name_of_keys
from cute_fa4.calls.operands.tensors import DTYPE_NAMES, are_in_pages, are_rows
from cute_fa4.calls.request import Options, Where
from cute_fa4.compiler import policy
from cute_fa4.scales import Scales
from cute_fa4.sm100.choose.which_kernel import Call, Kernel, choice, choice_of
from cute_fa4.sm100.latent.dequantized.schedule import STORED, STORED_IN_PAGES


def kernel_of(
    q, k, v, where: Where, options: Options, dtypes: dict, exact: bool, arch: str
) -> Kernel:
    """The kernel of a checked call; its lengths are computed only where they decide.

    dtypes: as dtypes_of says; exact: exact maxima are asked for; arch: of the kernel
    """
    facts = _facts(q, k, v, where, options, dtypes) | {"exact": exact, "arch": arch}
    hashable = type(facts["seqlen_q"]) is int  # a size of a tracer is not hashable
    found = choice_of(**facts) if hashable else choice(Call(**facts))
    return found.kernel if found.paired is None else found.of(lengths_of(q, k, where))


def _facts(q, k, v, where: Where, options: Options, dtypes: dict) -> dict:
    """The fields of which_kernel.Call, from tensors, options and the environment."""
    rope, packed = options.rope, where.q_layout == "packed"
    return dict(
        qkv_dtype=DTYPE_NAMES[q.dtype],
        kv_dtype=dtypes["kv_dtype"],
        head_dim=head_dim_of(q, options),
        head_dim_v=columns_of(v),
        group=q.shape[-2] // k.shape[-2],
        seqlen_q=where.seqlen_q(q),
        fixed=not length_may_choose(options.tokens_per_split, packed, where.tensors.seqused_q),
        pack_gqa=options.pack_gqa,
        latent=options.latent,
        of_rows=options.latent and (are_rows(k) or are_in_pages(q, k)),
        descales=Scales() if options.scales is None else options.scales.said,
        rope=0 if rope is None else rope.depth,
        rope_dtype=dtypes.get("rope_dtype"),
        mask=options.mask.mask,
        plain=options.score_mod is None and options.mask_mod is None,
        q_block=0 if options.blocks is None else options.blocks.queries,
        skips=options.skip_factor is not None,
        stays=dtypes["kv_dtype"] is not None,  # else it would have been quantised before
        **policy.of_kernels(dtypes["kv_dtype"] is not None, options.batch_invariant),
    )


def dtypes_of(q, k, options: Options) -> dict:
    """Configuration fields for tensors whose dtype differs from that of q."""
    if options.latent and are_rows(k):
        return STORED
    if options.latent and are_in_pages(q, k):
        return STORED_IN_PAGES
    of_rope = {} if options.rope is None else options.rope.dtypes
    of_blocks = None if options.scales is None else options.scales.tensors.get("k_block_scale")
    return {"kv_dtype": None if k.dtype == q.dtype else name_of_keys(k, of_blocks), **of_rope}


def head_dim_of(q, options: Options) -> int:
    """Columns of q, including those in q_rope."""
    return q.shape[-1] + (0 if options.rope is None else options.rope.depth_of_q)


def length_may_choose(tokens_per_split: int | None, packed: bool, seqused_q) -> bool:
    """Whether few queries may have their own kernel.

    A fixed cut promises the same bits in every batch, and the longest sequence of a batch must not choose the kernel.
    """
    return tokens_per_split is None or not (packed or seqused_q is not None)
