"""Scales of blocks of a 4-bit cache (NVFP4): what does not go with them."""

from cute_fa4.layouts.cache_scales import INTERLEAVED4, LAYOUTS, LINEAR, TOKENS


def contradictions(problem) -> list[str]:
    """Errors in a Problem with such a cache, and of the layout of its scales."""
    why = wrong_layout(problem, problem.cache_blocks)
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
    """Errors in v_block_scale_layout of a configuration. of_blocks: its cache has scales of blocks."""
    layout = config.v_block_scale_layout
    if layout not in LAYOUTS:
        return [f"v_block_scale_layout={layout!r}: use {' or '.join(map(repr, LAYOUTS))}"]
    if layout != LINEAR and not of_blocks:
        return [
            f"v_block_scale_layout={layout!r} of a cache without scales of blocks: use {LINEAR!r}, or e2m1 as its dtype"
        ]
    return []
