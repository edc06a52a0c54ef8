"""The tensors of a call are listed once, in cute_fa4/operands.py.

A name that stands in many files is a list that a new tensor has to join there. cu_seqlens_q is the probe. Every layer
between a public function and a kernel passes it on; those may name it that give it a meaning: the table, checks of what
it holds, kernels that read it, and the backward pass.
"""

import inspect
import re

import pytest

from cute_fa4.operands import LENGTHS, NAMES, OPERANDS, PLACES, CallTensors
from cute_fa4.sm100.kernel import SM100Kernel
from tests.suite.import_graph import ROOT

FOLDERS = ("calls", "operators", "compiler", "aot", "sm100")
PROBE = "cu_seqlens_q"
MOST_FILES = 10  # that name it in FOLDERS together: 29 before there was a table


def test_few_files_name_a_tensor_of_lengths():
    files = [path for folder in FOLDERS for path in (ROOT / "cute_fa4" / folder).rglob("*.py")]
    naming = [path for path in files if re.search(rf"\b{PROBE}\b", path.read_text())]
    assert 0 < len(naming) <= MOST_FILES, sorted(map(str, naming))


@pytest.mark.parametrize("group", NAMES)
def test_the_fields_of_a_group_lie_beside_each_other(group):
    assert CallTensors._fields[PLACES[group]] == NAMES[group]


def test_the_launch_has_the_lengths_in_the_order_of_the_table():
    """Plan.launch passes them by position."""
    own = [name for name in NAMES[LENGTHS] if OPERANDS[name].within is None]
    parameters = list(inspect.signature(SM100Kernel.__call__).parameters)
    first = parameters.index(own[0])
    assert parameters[first : first + len(own)] == own
    within = {row.within for row in OPERANDS.values()} - {None}
    assert within <= set(parameters)
