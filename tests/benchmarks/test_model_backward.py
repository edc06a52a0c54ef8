"""The loops of the backward pass in the cycle model: what docs/backward.md says is what the model says of the code."""

import pytest

from benchmarks.cycle_model import backward


def test_no_row_is_faster_than_its_products():
    """7 products of two owners, 8 of three kernels, 5 of one, at 8,192 FLOPs a cycle."""
    for row in backward.load():
        depth, depth_v = row.depths
        products = {"dq": (2, 1), "dkv": (2, 2), "dk": (2, 1), "dv": (1, 1), "bwd_sm100": (3, 2)}[
            row.kernel
        ]
        columns = products[0] * depth + products[1] * depth_v
        least = 2 * backward.ROWS**2 * columns / 8192
        assert least <= row.cycles


@pytest.mark.sweep
@pytest.mark.parametrize("kernel", ["dq", "dkv"])
def test_the_table_is_up_to_date(kernel):
    """Head dim 64, whose model is the fastest to make."""
    [row] = [
        x
        for x in backward.load()
        if x.kernel == kernel and x.depths == (64, 64) and "cute" in x.maker
    ]
    made = {"dq": backward.of_queries, "dkv": lambda depths: backward.of_keys(depths)[0]}[kernel](
        (64, 64)
    )
    assert made.cycles == pytest.approx(row.cycles, rel=0.01)
