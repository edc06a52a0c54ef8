"""The PTX of the kernels is what the repository says (ptx_digests.json), and ptxas takes it.

A run compiles a fifteenth of the variants, in turn by commit (tests/suite/turns.py), `pytest -m sweep` all of them.
Where a change means to alter PTX, `python -m tests.ptx_identity digest` writes the hashes again: the diff says which
changed.
"""

from dataclasses import fields

import pytest

from cute_fa4.sm100.choose.which_kernel import RULES
from tests import ptx_identity
from tests.emulator.mutations.quick import quick_or_sweep
from tests.ptx_identity import NAMES, compiler_of, config_of, digest_of, ptx_of, recorded

COMMITS = 15  # which compile all: a compile takes two seconds
DISTINCT = list(dict.fromkeys(ptx_identity.first_name_of().values()))


@pytest.mark.parametrize("name", quick_or_sweep(DISTINCT, COMMITS))
def test_the_ptx_is_as_recorded(name):
    ptx, said = ptx_of(name, through_ptxas=True), recorded()
    if compiler_of(ptx) != said["compiler"]:
        pytest.skip(f"recorded by {said['compiler']}, this is {compiler_of(ptx)}")
    assert digest_of(ptx) == said["variants"][name], (
        "the PTX changed; if that is meant: python -m tests.ptx_identity digest, and commit the file"
    )


def test_every_variant_is_recorded():
    assert list(recorded()["variants"]) == list(NAMES)


def test_names_of_one_configuration_have_one_digest():
    """A twice-named kernel is compiled once."""
    of = recorded()["variants"]
    assert all(of[name] == of[first] for name, first in ptx_identity.first_name_of().items())


def test_every_rule_has_a_variant():
    found = {config_of(name).schedule.family for name in ptx_identity.VARIANTS}
    assert {rule.schedule.family for rule in RULES} <= found


def test_every_option_has_two_values():
    """Fields of attention configurations, their schedules and the other kernels; new fields are included."""
    values = {}
    for config in map(config_of, NAMES):
        for part in (config, getattr(config, "schedule", None)):
            for field in fields(part) if part is not None else ():
                kind = type(config).__name__ if part is config else "schedules"
                values.setdefault((kind, field.name), set()).add(repr(getattr(part, field.name)))
    alone = {name for name, found in values.items() if len(found) < 2}
    assert not alone


@pytest.mark.parametrize(
    "edit, same",
    [
        (lambda ptx: ptx.replace("CL-1", "CL-2"), True),
        (lambda ptx: ptx + "\n\0", True),
        (lambda ptx: ptx.replace("add", "sub"), False),
        (lambda ptx: "\n".join(ptx.split("\n")[::-1]), False),
    ],
)
def test_a_digest_is_of_what_the_ptx_says(edit, same):
    ptx = "// Compiler Build ID: CL-1\n.version 9.4\n\tadd.s32 \t%r1, %r2, 1;\n"
    assert (digest_of(edit(ptx)) == digest_of(ptx)) == same
    assert compiler_of(ptx).endswith("NVVM CL-1")
