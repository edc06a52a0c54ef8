"""Scales of blocks of a cache (NVFP4, MXFP8): what does not go with them, and how the kernel reads them."""

from cute_fa4.dtypes import row_of
from cute_fa4.layouts.cache_scales import INTERLEAVED4, LAYOUTS, LINEAR, TOKENS

SCALES_OF_WORD = 4


def number_of(problem, tensor: str) -> int:
    """Scales of a row of "k" or "v"."""
    depth = problem.qk_depth if tensor == "k" else problem.ov_depth
    return depth // row_of(problem.kv_dtype).block


def words_of(problem) -> tuple[int, int]:
    """Words of four scales of a row of K, and of V; the last may have fewer. Both 0: the cache has no such scales."""
    if not problem.cache_blocks:
        return 0, 0
    of_k, of_v = (-(-number_of(problem, tensor) // SCALES_OF_WORD) for tensor in "kv")
    return of_k, of_v


def layout_of(problem, tensor: str) -> str:
    """Where they lie (layouts/cache_scales.py); those of K are linear."""
    return problem.v_block_scale_layout if tensor == "v" else LINEAR


def in_words(problem, tensor: str) -> bool:
    """Whether the kernel reads four of them at once; else bytes: they do not fill words, or are interleaved."""
    whole = number_of(problem, tensor) % SCALES_OF_WORD == 0
    return whole and layout_of(problem, tensor) == LINEAR


def contradictions(problem) -> list[str]:
    """Errors in a Problem with such a cache, and of the layout of its scales."""
    why = wrong_layout(problem, problem.in_element > 1)
    if problem.cache_blocks and (problem.descales.of_keys or problem.latent or problem.rope_depth):
        why.append(
            f"kv_dtype={problem.kv_dtype!r} with descales={problem.descales!r}, latent={problem.latent}, rope_depth="
            f"{problem.rope_depth}: use letters of 'kvo', latent=False and rope_depth=0"
        )
    if problem.v_block_scale_layout == INTERLEAVED4 and (
        problem.kv_layout == "packed" or problem.page_size % TOKENS
    ):
        why.append(
            f"v_block_scale_layout={INTERLEAVED4!r} with kv_layout={problem.kv_layout!r}, page_size="
            f"{problem.page_size}: each {TOKENS} tokens of a page or sequence share lines: use 'dense', or 'paged' "
            f"with a multiple of {TOKENS}, or {LINEAR!r}"
        )
    return why


def wrong_layout(config, of_blocks: bool) -> list[str]:
    """Errors in v_block_scale_layout of a configuration. of_blocks: its cache may have others than linear scales."""
    layout = config.v_block_scale_layout
    if layout not in LAYOUTS:
        return [f"v_block_scale_layout={layout!r}: use {' or '.join(map(repr, LAYOUTS))}"]
    if layout != LINEAR and not of_blocks:
        return [
            f"v_block_scale_layout={layout!r} of a cache without 4-bit numbers: use {LINEAR!r}, or e2m1 as its dtype"
        ]
    return []
