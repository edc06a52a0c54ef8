"""Columns of K in a separate tensor, which all heads share: which fields of a problem contradict each other."""

from ...dtypes import QUANTIZED


def may_be_beside_dequantized(rope_dtype: str | None, qkv_dtype: str) -> bool:
    """Whether these columns run beside 8-bit K that a kernel dequantizes: 16-bit columns are multiplied as stored.

    >>> [may_be_beside_dequantized(rope, "bf16") for rope in (None, "e5m2", "bf16", "fp16")]
    [True, True, True, False]
    """
    return rope_dtype in (None, *QUANTIZED, qkv_dtype)


def contradictions(problem) -> list[str]:
    """Errors in the fields of columns of K in a separate tensor."""
    why = []
    if problem.rope_dtype is not None and not (problem.rope_depth or problem.latent):
        why.append(f"rope_dtype={problem.rope_dtype!r} with rope_depth=0: use None")
    if problem.rope_page_size and not problem.rope_depth:
        why.append(f"rope_page_size={problem.rope_page_size} with rope_depth=0: use 0")
    if not problem.rope_depth:
        return why
    if problem.rope_depth >= problem.qk_depth:
        why.append(
            f"rope_depth={problem.rope_depth} of qk_depth={problem.qk_depth}: it counts the last columns: use fewer"
        )
    if problem.kv_layout == "paged" and not problem.rope_page_size:
        why.append(
            "rope_page_size=0 with kv_layout='paged': columns that all heads share have pages of their own: say "
            "how many keys these hold"
        )
    for name in ("latent", "cache_batch_idx", "cache_leftpad"):
        if getattr(problem, name):
            why.append(
                f"{name}=True with rope_depth={problem.rope_depth}: K of each head is not a cache: use False"
            )
    return why
