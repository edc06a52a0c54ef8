"""What plain pytest leaves out of a product: nothing that two options decide."""

import itertools

import pytest

from tests import pairwise
from tests.suite import turns

# Sizes as the attention tests have them: five options of two to five values, and a rule that excludes a fifth of them.
OPTIONS = {
    "head_dim": (64, 72, 80, 96, 128),
    "dtype": ("bf16", "fp16"),
    "mask": ("full", "causal", "window"),
    "pack": (False, True),
    "lse": (False, True),
}


def valid(head_dim, pack, **case):
    return not (pack and head_dim == 72)


EVERY = pairwise.product(OPTIONS, valid)


def test_every_two_values_that_go_together_are_among_the_chosen():
    chosen = [EVERY[n] for n in pairwise.covering(EVERY)]
    for one, other in itertools.combinations(OPTIONS, 2):
        together = {(case[one], case[other]) for case in EVERY}
        assert {(case[one], case[other]) for case in chosen} == together
    assert (
        15 <= len(chosen) <= 20 < len(EVERY) / 5
    )  # 5 * 3 at least: the two options with most values


def test_the_choice_is_the_same_every_time_and_has_no_case_twice():
    first = pairwise.covering(EVERY)
    assert pairwise.covering(EVERY) == first and len(set(first)) == len(first)


def test_a_single_option_is_run_in_full():
    assert pairwise.covering(pairwise.product({"a": (1, 2, 3)})) == [0, 1, 2]


@pytest.fixture(autouse=True)
def every_case(monkeypatch):
    """As the sweep has them, also where plain pytest runs these tests."""
    monkeypatch.setattr(pairwise, "kept_only", False)


def parameters(**keywords):
    mark = pairwise.cases("area", OPTIONS, valid=valid, **keywords)
    return mark.args[1]


def kept(parameter):
    (mark,) = parameter.marks
    return mark.kwargs["kept"]


def test_the_marks_say_which_cases_are_kept_and_what_they_compile():
    every = parameters(kernel=("head_dim", "mask"))
    assert [p.values for p in every] == [tuple(case.values()) for case in EVERY]
    assert sum(map(kept, every)) == len(pairwise.covering(EVERY))
    assert every[0].id == "64-bf16-full-False-False"
    assert every[0].marks[0].kwargs["kernel"] == ("64", "full")


def test_further_cases_have_a_reason_and_are_kept():
    left_out = next(c for n, c in enumerate(EVERY) if n not in pairwise.covering(EVERY))
    every = parameters(also={"it failed once": left_out})
    assert sum(map(kept, every)) == len(pairwise.covering(EVERY)) + 1
    with pytest.raises(ValueError, match="needs a reason"):
        parameters(also={"": left_out})
    with pytest.raises(ValueError, match="must not be among the pairs already"):
        parameters(also={"why": EVERY[pairwise.covering(EVERY)[0]]})
    with pytest.raises(ValueError):  # a case that is not valid
        parameters(also={"why": {**left_out, "head_dim": 72, "pack": True}})


def test_of_an_option_with_quick_values_the_rest_is_for_the_sweep():
    name, values = next((name, values) for name, values in OPTIONS.items() if len(values) > 2)
    every = parameters(quick={name: values[:2]})
    place = list(OPTIONS).index(name)
    assert {p.values[place] for p in every if kept(p)} == set(values[:2])
    wanted = set().union(*(pairwise.pairs(c) for c in EVERY if c[name] in values[:2]))
    found = [dict(zip(OPTIONS, p.values, strict=True)) for p in every if kept(p)]
    assert set().union(*map(pairwise.pairs, found)) == wanted
    with pytest.raises(ValueError, match="accepted: some of"):
        parameters(quick={name: values})


def test_three_commits_run_all_pairs_and_one_commit_all_cases_of_a_kernel(monkeypatch):
    by_commit = []
    for turn in range(3):
        monkeypatch.setattr(turns, "chosen", turn)
        by_commit.append(
            {p.id for p in parameters(kernel=("head_dim", "mask"), commits=3) if kept(p)}
        )
    assert set().union(*by_commit) == {p.id for p in parameters() if kept(p)}
    kernels = [{name.split("-")[0] + name.split("-")[2] for name in names} for names in by_commit]
    assert all(kernels) and sum(map(len, kernels)) == len(set().union(*kernels))


def test_where_the_sweep_does_not_run_only_kept_cases_are_collected(monkeypatch):
    every = parameters()
    monkeypatch.setattr(pairwise, "kept_only", True)
    assert [p.id for p in parameters()] == [p.id for p in every if kept(p)]
