"""Variants and problems of `hopper check`."""

import pytest

from cute_fa4.hopper import cases, gradient_cases
from cute_fa4.hopper.variant import Variant


def test_random_problems_are_the_same_everywhere():
    assert cases.problems(Variant(), "most") == cases.problems(Variant(), "most")
    assert cases.problems(Variant(64), "most") != cases.problems(Variant(), "most")


def test_variants_are_chosen_by_a_text_of_their_name():
    assert cases.selected() == (cases.VARIANTS, gradient_cases.PROBLEMS)
    chosen, none = cases.selected(["pages of 7", "d=40 bf16 decode"])
    assert none == ()
    assert cases.selected(["gradients"]) == ((), gradient_cases.PROBLEMS)
    assert {v.page_size for v in chosen if not v.decode} == {7, 784}  # 784 begins with 7
    assert [v.head_dim for v in chosen if v.decode] == [40]
    with pytest.raises(ValueError, match="--only 'pages of 17' is in the name of no variant"):
        cases.selected(["pages of 17"])


def test_heads_are_whole_groups():
    for variant in cases.VARIANTS:
        assert all(p.heads % variant.group == 0 for p in cases.problems(variant, "all"))
