"""How calls of a model lay out their tensors, and which keys their queries see, for configs_for_model()."""

from __future__ import annotations

from cute_fa4.layouts.cache_scales import LINEAR


def masks_of(causal: bool, windows: tuple, chunk: int | None) -> list:
    """The kinds of masks of a model's layers, with what is bound at each call left out."""
    from cute_fa4 import masks

    bound = [masks.resolve_mask(causal, window, None) for window in windows]
    if chunk is not None:
        bound.append(masks.chunked_causal(chunk) if causal else masks.chunked(chunk))
    return list(dict.fromkeys(b.mask for b in bound))


def layouts_of(calls: tuple, page_sizes: tuple, ropes: list) -> list[dict]:
    """Configuration fields for the layouts of CALLS. ropes: of ropes_of; only packed calls have them in pages."""
    return [
        layout | rope
        for call in calls
        for layout in _layouts(call, page_sizes)
        for rope in (ropes if call == "packed" else ropes[:1])
    ]


def ropes_of(depth: int, page_sizes: tuple, dtype: str | None, scales: str | None) -> list[dict]:
    """Configuration fields for key columns in a separate tensor: first with rows as k, then in pages."""
    if not depth:
        return [{}]
    of_all = {"rope_depth": depth, "rope_dtype": dtype, "scale_dtype": scales}
    return [of_all | {"rope_page_size": page} for page in (0, *page_sizes)]


def _layouts(call: str, page_sizes: tuple) -> list[dict]:
    if call == "dense":
        return [{}]
    if call == "packed":
        return [{"q_layout": "packed", "kv_layout": "packed", "v_block_scale_layout": LINEAR}]
    queries = ("packed",) if call == "paged" else ("dense", "packed")
    return [
        {
            "q_layout": q_layout,
            "kv_layout": "paged",
            "seqused_k": True,
            "page_size": page,
        }
        for q_layout in queries
        for page in page_sizes
    ]
