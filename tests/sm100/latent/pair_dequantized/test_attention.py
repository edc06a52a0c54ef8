"""33 to 128 rows over latent caches of 656 and of 584 bytes a row agree with float64."""

import pytest
import torch

from tests.sm100.latent.dequantized.row_batches import Call, check

CALLS = {
    "128 heads, a sequence without keys": Call(
        *(128, 1, 64, (300, 0, 5), "hostile", torch.int8), options={"num_splits": 1}
    ),
    "584 bytes, by index": Call(128, 1, 64, (400,), "hostile", listed=300, row_bytes=584),
}
FURTHER = {
    "16 heads, 8 queries by index": Call(16, 8, 64, (400,), "random", listed=150),
    "128 heads": Call(128, 1, 64, (140,), "in_order"),
    "16 heads, 8 queries, causal, shared keys": Call(
        16, 8, 32, (400,), "hostile", options={"causal": True}
    ),
    "heads that are no power of two": Call(
        *(48, 2, 16, (150,), "random", torch.float8_e4m3fn), options={"num_splits": 1}
    ),
    "gathered, two parts": Call(128, 1, 5, (300, 7), "hostile", options={"num_splits": 2}),
    "pages of a tile": Call(64, 1, 128, (400,), "random"),
    "two tiles of rows": Call(256, 1, 8, (129,), "hostile"),
    "584 bytes, 64 heads, causal, a sequence without keys": Call(
        *(64, 2, 64, (300, 0, 5), "hostile", torch.int8), options={"causal": True}, row_bytes=584
    ),
    "584 bytes, pages of an odd size, two parts": Call(
        128, 1, 5, (140, 7), "random", options={"num_splits": 2}, row_bytes=584
    ),
    "128 heads by index": Call(128, 1, 64, (2500,), "hostile", listed=260),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_agree_with_float64(name):
    check(CALLS[name])


@pytest.mark.sweep
@pytest.mark.parametrize("name", FURTHER)
def test_further_calls_agree_with_float64(name):
    check(FURTHER[name])
