"""Planted defects are caught by the checks meant for them; equivalent mutants are not caught.

The sizes of the subjects are explained where they are made (attention_kernel.py, small_kernels.py); together
the mutants take about two minutes.

Three commits plant all of them (tests/suite/turns.py), `pytest -m sweep` does at once.
"""

import json
from collections import Counter
from functools import cache

import pytest

from cute_fa4 import compile_cache
from cute_fa4.sm100.choose.choose_config import choose_config
from tests.emulator.mutations import attention_places, table
from tests.emulator.mutations.attention_places import CAUSAL, FULL
from tests.emulator.mutations.edits import PlantingError, lines, move, replace
from tests.emulator.mutations.everything import mutants, subjects
from tests.emulator.mutations.mutant import assert_caught, try_mutant
from tests.emulator.mutations.quick import quick_or_sweep

DEFECTS = [mutant for mutant in mutants() if not mutant.equivalent and not mutant.survives]
SURVIVORS = [mutant for mutant in mutants() if mutant.survives]
EQUIVALENT = [mutant for mutant in mutants() if mutant.equivalent]


@cache
def outcome_of(mutant):
    return try_mutant(mutant, subjects()[mutant.subject])


@pytest.mark.parametrize("name", list(subjects()))
def test_the_unchanged_kernel_is_clean_under_every_schedule(name):
    subjects()[name].expected()


@pytest.mark.parametrize("mutant", quick_or_sweep(DEFECTS))
def test_a_defect_is_caught_by_a_check_meant_for_it(mutant):
    assert_caught(mutant, subjects()[mutant.subject])


@pytest.mark.parametrize("mutant", EQUIVALENT, ids=lambda m: m.name)
def test_an_equivalent_mutant_gives_the_same_bits_and_no_report(mutant):
    assert not outcome_of(mutant).caught_by, outcome_of(mutant).message


@pytest.mark.parametrize("mutant", SURVIVORS, ids=lambda m: m.name)
def test_a_known_survivor_still_survives(mutant):
    """When it no longer does, its reason in the table is wrong."""
    assert not outcome_of(mutant).caught_by, outcome_of(mutant).message


def test_there_are_enough_defects_of_every_kind_and_few_survive():
    """The numbers that docs/verification.md states: at least 60 defects, at least 95 % caught."""
    planted = len(DEFECTS) + len(SURVIVORS)
    assert planted >= 60 and len(DEFECTS) >= 0.95 * planted
    assert max(Counter(mutant.name for mutant in mutants()).values()) == 1
    meant = {kind for mutant in DEFECTS for kind in mutant.meant}
    assert meant >= {
        "RaceError", "UninitializedRead", "BarrierError", "Deadlock", "DivergenceError", "InFlightError",
        "TensorMemoryError", "IllegalAccess", "wrong numbers",
    }  # fmt: skip


def test_the_data_file_names_every_mutant():
    """It was written with the mutants of today (python -m tests.emulator.mutations --write)."""
    recorded = table.names(json.loads(table.DATA.read_text()))
    assert recorded == {mutant.name for mutant in mutants()}


def test_an_edit_without_exactly_its_place_is_refused():
    """No line, several where one is meant, and a replacement that changes nothing: no defect is planted by accident."""
    barrier = lines("kernel", "bar.sync")
    with pytest.raises(PlantingError, match="the kernel has no 'bar.sync' of kernel"):
        replace(barrier, "")("ret;")
    with pytest.raises(PlantingError, match="the kernel has 2 'bar.sync' of kernel; say which"):
        move(barrier, before=lines("kernel", "ret;"))("bar.sync 0;\nbar.sync 0;\nret;")
    with pytest.raises(PlantingError, match="the kernel has 2 'bar.sync' of kernel, not 3"):
        replace(barrier.of(3).number(1), "")("bar.sync 0;\nbar.sync 0;")
    with pytest.raises(PlantingError, match="the kernel has 2 'bar.sync' of kernel, not 1"):
        replace(barrier.named("the only one")["the only one"], "")("bar.sync 0;\nbar.sync 0;")
    assert not hasattr(barrier, "number"), "a number needs a count"
    names = barrier.named("the first", "the second")
    assert replace(names["the second"], "")("bar.sync 0;\nbar.sync 1;") == "bar.sync 0;\n 1;"
    with pytest.raises(ValueError, match="names that differ"):
        barrier.named("one", "one")
    with pytest.raises(PlantingError, match="changes nothing"):
        replace(barrier, "bar.sync")("bar.sync 0;")


# Kernels that no defect was written for: other chunks, other bytes, other code around the same roles and barriers.
OTHERS = {
    FULL: (
        dict(qkv_dtype="fp16", head_dim=128, group=2, write_lse=True, sink=True),
        dict(qkv_dtype="bf16", head_dim=128, write_lse=True, seqused_k=True, maximum="exact"),
    ),
    CAUSAL: (
        dict(
            qkv_dtype="fp16",
            head_dim=64,
            causal=True,
            write_lse=True,
            q_layout="packed",
            lone_tiles=False,
        ),
    ),
}
# Quotes of a defect: bits of an instruction descriptor, which name the dtype; how a mask is made; an offset
# that a kernel may add to another register.
QUOTED = {
    "K is copied to the slot after its own",
    "V is K-major in the instruction descriptor",
    "P and V are float16 in the instruction descriptor",
    "half of the keys in the instruction descriptor",
}


@pytest.mark.parametrize(
    "subject, options", [(s, o) for s, several in OTHERS.items() for o in several], ids=str
)
def test_defects_find_their_places_in_kernels_they_were_not_written_for(
    subject, options, monkeypatch
):
    """Role and barrier are enough: a change of the kernel moves a place, and does not lose it."""
    config = choose_config(**options)
    ptx = compile_cache.function_for(config, "emulator").__ptx__
    monkeypatch.setitem(attention_places.KNOWN, config.name, config)
    for mutant in mutants():
        if mutant.subject == subject and mutant.name not in QUOTED:
            assert mutant.edit(ptx) != ptx, mutant.name
