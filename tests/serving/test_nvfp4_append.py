"""New rows in caches of 4 bits (NVFP4): the better of two scales, nvfp4.write.

test_block_appends.py has what caches with scales of blocks share.
"""

from __future__ import annotations

import pytest
import torch

from cute_fa4 import capabilities, flash_attn_with_kvcache, nvfp4
from tests.serving.block_appends import WRITTEN, call_of, same_bytes, written
from tests.serving.test_append import quiet

E4M3 = torch.float8_e4m3fn


def test_the_better_of_two_scales_is_chosen_for_the_rows_of_a_call():
    """four_over_six of the call reaches the kernel: other bytes, those of nvfp4.write, and a smaller error."""
    call = call_of() | {"four_over_six": True}
    expected, plain = written(call), written(call | {"four_over_six": False})
    out = quiet(flash_attn_with_kvcache, **call)
    assert all(same_bytes(call[name], expected[name]) for name in WRITTEN)
    assert not all(same_bytes(call[name], plain[name]) for name in WRITTEN)
    assert torch.equal(out, quiet(flash_attn_with_kvcache, **expected))  # without new rows, too


def test_a_choice_of_scales_is_refused_for_caches_without_any():
    q, (k, v) = torch.ones(1, 1, 8, 64).bfloat16(), torch.ones(2, 1, 20, 1, 64).bfloat16()
    with pytest.raises(ValueError, match="four_over_six: True with k_cache of torch.bfloat16"):
        flash_attn_with_kvcache(
            q, k, v, q[:, :, :1], q[:, :, :1], cache_seqlens=3, four_over_six=True
        )
    [row] = capabilities(
        dtype="bf16", head_dim=64, causal=True, return_lse=False, arch="sm_100a", k=True, v=True,
        cache_seqlens=True, four_over_six=True,
    )  # fmt: skip
    assert not row.runs and row.reasons[0].startswith("four_over_six: True with k_cache")


def test_write_refuses_shapes_by_name():
    codes, scales = torch.zeros(3, 4, 2, 32).byte(), torch.zeros(3, 4, 2, 4).to(E4M3)
    x, slots = torch.zeros(5, 2, 64), torch.arange(5)
    for change, message in (
        (dict(kv_layout="NDH"), "kv_layout: 'NDH'"),
        (dict(scale_layout="mixed"), "scale_layout: 'mixed'; accepted: 'linear' or 'interleaved4'"),
        (
            dict(
                codes=codes[:, :2],
                scales=scales[:, :2],
                slots=slots.new_full((5,), 1),
                scale_layout="interleaved4",
            ),
            "scales: 2 tokens of 4 scales; accepted for the layout 'interleaved4': multiples of 4",
        ),
        (dict(slots=slots[:3]), r"slots: shape \(3,\) with x \(5, 2, 64\)"),
        (dict(codes=codes[..., :16]), r"codes: shape .* accepted: pages of rows of \(2, 32\)"),
        (dict(scales=scales[..., :2]), r"scales: shape .* accepted: pages of rows of \(2, 4\)"),
    ):
        with pytest.raises(ValueError, match=message):
            nvfp4.write(**dict(x=x, codes=codes, scales=scales, slots=slots) | change)
