"""How many columns of keys may lie in k_rope, and of queries in q_rope."""

from __future__ import annotations

from cute_fa4.dtypes import is_quantized, row_of_torch

# A row of a tile in shared memory is made of spans of so many elements of 16 bits; k_rope has the last of them.
ROPE_SPAN, ROPE_SPAN_OF_FP8 = 64, 128  # and of 8 bits, of which k has up to one
ROPE_STEP_OF_FP8 = 16  # of 8 bits in 16 bytes, of which the columns of k are a multiple

SPAN_OF_FP8_IN_WORDS = f"a multiple of {ROPE_STEP_OF_FP8} up to {ROPE_SPAN_OF_FP8}"


def check_rope_depths(dtype, of_q: int, of_k: int, in_rope: int, of_q_apart: int) -> None:
    if not of_k or not in_rope:
        raise ValueError(
            f"k_rope: {in_rope} columns after {of_k} of k; accepted: at least one of each; without k_rope, all in k"
        )
    if of_q_apart:
        _check_depths_beside(of_q, of_k, in_rope)
        return
    if of_k + in_rope != of_q:
        raise ValueError(
            f"k_rope: {in_rope} columns after {of_k} of k while q has {of_q}; accepted: {of_q} together: q has the "
            "columns of k, then those of k_rope"
        )
    if is_quantized(row_of_torch(dtype).name):
        if not _fits_a_span(of_k) or in_rope > ROPE_SPAN_OF_FP8:
            raise ValueError(
                f"k_rope: {in_rope} columns after {of_k} of k, of 8 bits; accepted: up to {ROPE_SPAN_OF_FP8} after "
                f"{SPAN_OF_FP8_IN_WORDS}; pad k with zeros, and q between them, or concatenate k and k_rope"
            )
        return
    if of_k % ROPE_SPAN or in_rope > ROPE_SPAN:
        raise ValueError(
            f"k_rope: {in_rope} columns after {of_k} of k; accepted: up to {ROPE_SPAN} after a multiple of "
            f"{ROPE_SPAN}; concatenate k and k_rope"
        )


def _check_depths_beside(of_q: int, of_k: int, in_rope: int) -> None:
    """Check q and k of 8 bits whose other columns have 16 bits, in q_rope and k_rope."""
    if of_q != of_k:
        raise ValueError(
            f"q: {of_q} columns while k has {of_k}, with q_rope; accepted: {of_k}: the others of q are in q_rope, as "
            "those of k in k_rope"
        )
    if not _fits_a_span(of_k) or in_rope > ROPE_SPAN:
        raise ValueError(
            f"k_rope: {in_rope} columns of 16 bits after {of_k} of k of 8 bits; accepted: up to {ROPE_SPAN} after "
            f"{SPAN_OF_FP8_IN_WORDS}; pad k with zeros, and q likewise, or convert all to one dtype and concatenate"
        )


def _fits_a_span(columns: int) -> bool:
    """Whether k of 8 bits may have so many columns before those of k_rope."""
    return columns % ROPE_STEP_OF_FP8 == 0 and columns <= ROPE_SPAN_OF_FP8
