"""Gradients of `hopper check`: the kernels that their calls ask for, and what the check notices."""

import pytest

from cute_fa4.hopper import gradients
from cute_fa4.hopper.calls import configurations
from cute_fa4.hopper.check import WrongResult
from cute_fa4.hopper.gradient_cases import Problem, dense
from cute_fa4.sm100.backward.config import BackwardConfig

pytestmark = pytest.mark.filterwarnings("ignore")

# Two sequences of a row or two, one without keys: the smallest call with spare rows and every law.
SMALL = Problem((2, 1), (3, 0), heads=(2, 1), depths=(64, 64), packed=True, lse=True)


def test_calls_ask_for_kernels_of_both_passes():
    found = configurations((), "quick", [gradients.call(SMALL, "cpu").launch])
    forward, backward = found
    assert backward == BackwardConfig("bf16", 64, 64, packed=True, dlse=True, arch=forward.arch)


@pytest.mark.parametrize(
    "problem",
    [
        SMALL,
        dense(1, 3, 2, heads=(2, 1), depths=(64, 64)),
        dense(2, 3, 2, heads=(2, 1), depths=(64, 64), sink=True, softcap=5.0),
        # Three query blocks and two key blocks, of which each head sees some.
        dense(1, 260, 200, heads=(2, 1), depths=(64, 64), blocks=(128, 128)),
        Problem((5, 130), (140, 0), heads=(2, 1), depths=(64, 64), packed=True, blocks=(128, 128)),
    ],
)
def test_right_gradients_pass(problem):
    assert 0 < gradients.check(problem, "cpu")["of_allowed"] <= 1


def scaled(by: float, which: int):
    """Gradients of which one is too large."""

    def change(found, launch):
        found[which].mul_(by)

    return change


def changed_in_the_second_launch(found, launch):
    found[1][0] += launch


def in_a_spare_row(found, launch):
    found[0][-1] = 1


def of_no_key(found, launch):
    found[0][2] = 1  # the query of the second sequence


@pytest.mark.parametrize(
    "change, message",
    [
        *((scaled(1.2, i), f"{name} is off by") for i, name in enumerate(("dq", "dk", "dv"))),
        (changed_in_the_second_launch, "dk differs between two launches"),
        (in_a_spare_row, "dq of rows of no sequence is not 0"),
        (of_no_key, "gradients of a sequence without rows are not 0"),
    ],
)
def test_wrong_gradients_are_noticed(monkeypatch, change, message):
    launch, launches = gradients.Call.launch, []

    def wrong(call):
        found = launch(call)
        change(found, len(launches))
        launches.append(call)
        return found

    monkeypatch.setattr(gradients.Call, "launch", wrong)
    with pytest.raises(WrongResult, match=message):
        gradients.check(SMALL, "cpu")
