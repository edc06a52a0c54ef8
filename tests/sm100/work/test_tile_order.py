"""Every number of the order of tiles fits 32 bits, however long the keys are.

flash-attention#2662: bytes of a head's keys, a product with their number, were negative from 4M keys on.
"""

import pytest

from cute_fa4 import masks
from cute_fa4.calls.operands.strides import MAX_ROWS
from cute_fa4.sm100.choose.choose_config import choose_config
from cute_fa4.sm100.work.tile_order import tile_order


class Int32(int):
    """A number of a launch, as the compiled host code has it."""

    def __new__(cls, value):
        assert -(2**31) <= value < 2**31, f"{value} overflows"
        return super().__new__(cls, value)


def _in_32_bits(name):
    def operate(self, other):
        return Int32(getattr(int, name)(self, other))

    return operate


for _name in ("add", "sub", "mul", "floordiv", "mod"):
    for _operator in (f"__{_name}__", f"__r{_name}__"):
        setattr(Int32, _operator, _in_32_bits(_operator))


@pytest.mark.parametrize("seqlen_k", [1, 2**22, MAX_ROWS])
@pytest.mark.parametrize("depth, group", [(128, 1), (128, 128), (8, 128)])
def test_numbers_of_a_launch_fit_32_bits(depth, group, seqlen_k):
    """The longest keys that a call may have; many heads, of which all or none share a tile."""
    config = choose_config(
        qkv_dtype="bf16", head_dim=depth, group=group, mask=masks.Causal(), pack_gqa=False
    )
    sizes = [Int32(n) for n in (2048, seqlen_k, 128, 3)]
    order = tile_order(config, *sizes)
    assert order.narrow_heads >= 1 and 0 <= order.num_wide <= 128 * 3
    if seqlen_k == MAX_ROWS and group == 1:
        assert order.narrow_heads == 1, "none shares L2 with another"
