"""The loops of the backward pass in the cycle model: no loop is faster than its products, and records are today's."""

import pytest

from benchmarks.cycle_model import backward, profiled
from benchmarks.cycle_model.kernels import OURS

LOOPS = [
    (maker, kernel, depths) for maker, depths, kernels in backward.calls() for kernel in kernels
]


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: f"{loop[1]} {loop[2]}")
def test_no_row_is_faster_than_its_products(loop):
    """At 8,192 FLOPs a cycle."""
    found = [profiled.recorded(backward.launch(*loop, turns)) for turns in backward.TURNS]
    if any(one.state == "missing" for one in found):
        pytest.fail("not recorded: python benchmarks/model.py --record")
    _, kernel, depths = loop
    columns = backward.products(depths, (kernel,))
    least = 2 * backward.ROWS**2 * columns / 8192
    assert least <= backward.cycles_of(*(one.cycles for one in found))


OURS_ALONE = [(depths, kernels) for maker, depths, kernels in backward.calls() if maker == OURS]


@pytest.mark.parametrize("depths, kernels", OURS_ALONE, ids=str)
def test_a_call_pays_a_start_for_every_cta(depths, kernels):
    """Kernels of 1,000 cycles a tile, and 3,000 besides: no call reaches the speed of the loops alone."""

    def cost(launch):
        return profiled.Cycles(3000.0 + 1000 * int(launch.name.split()[-2]), {})

    besides, speeds = backward.call_cells(cost, depths, kernels)
    assert besides == dict.fromkeys(kernels, "3,000")
    limit = backward.teraflops(1000.0 * len(kernels), depths)
    found = [float(cell.replace(",", "")) for cell in speeds]
    assert all(limit / 2 < speed < limit for speed in found)


def test_kernels_with_more_products_are_slower_in_long_runs():
    """7 products, and 8, where one kernel has 5; a limit only lowers a speed."""
    two, three = ("dq", "dkv"), ("dq", "dk", "dv")
    for device in backward.DEVICES:
        of_one, of_two, of_three = (
            backward.sustained(1500.0, (128, 128), kernels, device)
            for kernels in ((backward.JOINT,), two, three)
        )
        assert of_three < of_two < of_one <= 1500 * 152 / 148 * 2.062 / 1.85
    assert backward.products((128, 128), two) == 7 * 128
    assert backward.products((128, 128), three) == 8 * 128


@pytest.mark.sweep
@pytest.mark.parametrize("kernel", ["dq", "dkv"])
def test_the_table_is_up_to_date(kernel):
    """Head dim 64, whose model is the fastest to make."""
    launch = backward.launch(OURS, kernel, (64, 64), backward.TURNS[0])
    found = profiled.recorded(launch)
    if found.state == "missing":
        pytest.fail("not recorded: python benchmarks/model.py --record")
    assert launch.figures()["cycles"] == pytest.approx(found.cycles, rel=0.01)
