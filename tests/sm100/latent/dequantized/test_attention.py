"""Up to 32 rows over latent caches of 656 and of 584 bytes a row agree with float64."""

import pytest
import torch

from tests.sm100.latent.dequantized.row_batches import Call, check

CALLS = {
    "16 heads, causal, shared keys, a sequence without keys": Call(
        *(16, 2, 64, (300, 5, 0), "hostile"), options={"causal": True}
    ),
    "by index": Call(16, 2, 64, (400,), "hostile", listed=150, options={"num_splits": 1}),
    "584 bytes, by index": Call(16, 2, 64, (400,), "hostile", listed=150, row_bytes=584),
    "584 bytes, 32 rows, causal, a sequence without keys": Call(
        *(16, 2, 64, (300, 5, 0), "hostile", torch.float8_e4m3fn),
        options={"causal": True, "num_splits": 1},
        row_bytes=584,
    ),
}
FURTHER = {
    "32 heads": Call(
        *(32, 1, 16, (150,), "random", torch.float8_e4m3fn), options={"num_splits": 1}
    ),
    "gathered": Call(16, 1, 5, (300, 7), "hostile", options={"num_splits": 2}),
    "8 heads, pages of a tile": Call(8, 1, 128, (400,), "random"),
    "584 bytes, 8 heads, pages of an odd size": Call(8, 1, 5, (40, 7), "random", row_bytes=584),
    "584 bytes, one page": Call(8, 1, 128, (100,), "random", torch.int8, 30, row_bytes=584),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_agree_with_float64(name):
    check(CALLS[name])


@pytest.mark.sweep
@pytest.mark.parametrize("name", FURTHER)
def test_further_calls_agree_with_float64(name):
    check(FURTHER[name])
