"""The cases of tests/cases.py that make products, as parameters: pytest runs pairs of them, the sweep all."""

from tests import cases, pairwise
from tests.suite import turns

# Every head dim with both dtypes and both masks, every dtype with both masks. All three together decide nothing that
# two do not: the dtype is a field of descriptors and an instruction of rounding, the mask is code before them.
HEAD_DIMS = pairwise.choose(
    "attention: head dim, dtype, mask",
    cases.HEAD_DIMS,
    by=("head_dim", "dtype", "causal"),
    kernel=lambda case: case.config().name,
    commits=turns.OF_CASES,
    seconds=0.3,
)


def causal_of(parameters: list) -> list:
    return [parameter for parameter in parameters if parameter.values[0].causal]


def full_of(parameters: list) -> list:
    return [parameter for parameter in parameters if not parameter.values[0].causal]
