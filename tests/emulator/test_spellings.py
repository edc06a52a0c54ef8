"""The count of PTX spellings in docs/emulator_coverage.md: complete, and true to the table of instructions."""

import importlib.util
import re
from pathlib import Path

import pytest

from tests.emulator.spellings import ALL_GPUS, INSTRUCTIONS, expanded, has_meaning, known, record

EVERY = (*INSTRUCTIONS, *ALL_GPUS)


def test_templates_stand_for_each_spelling_once():
    assert list(expanded("a{.b|}.{c|d}")) == ["a.b.c", "a.b.d", "a.c", "a.d"]
    every = [s for one in EVERY for s in one.spellings]
    assert len(every) == len(set(every)) and all(re.fullmatch(r"[\w.:]+", s) for s in every)


@pytest.mark.parametrize("one", EVERY, ids=lambda one: f"{one.chapter}-{one.name}")
def test_what_is_missing_has_a_reason_and_nothing_else_has(one):
    assert bool(one.missing) == (len(one.with_meaning) < len(one.spellings))


def test_what_tests_and_foreign_kernels_execute_has_a_meaning():
    kept = record()
    executed = [*kept["tests"], *(s for some in kept["foreign"].values() for s in some)]
    assert set(executed) <= known() and all(map(has_meaning, executed))
    assert len(kept["tests"]) > 150 and len(kept["foreign"]) >= 3


def libcu_headers():
    """The generated wrappers of PTX instructions in libcu++, of a CUDA toolkit or of the wheels."""
    wheels = importlib.util.find_spec("nvidia")
    folders = map(Path, wheels.submodule_search_locations) if wheels else ()
    roots = [
        Path("/usr/local/cuda/include"),
        *(p / "cu13" / "include" for p in folders),
    ]
    found = (root / "cccl/cuda/__ptx/instructions/generated" for root in roots)
    return next((folder for folder in found if folder.is_dir()), None)


CHAPTERS = re.compile(
    r"(?:tcgen05|cp\.async\.bulk|cp\.reduce|cp\.async\.mbarrier|mbarrier|barrier\.cluster|clusterlaunchcontrol|"
    r"fence\.proxy|fence\.mbarrier_init|tensormap|getctarank|st\.async|red\.async)\b"
)


def test_every_instruction_of_libcu_is_in_the_table():
    """NVIDIA generates its wrappers from the ISA: what they have and the table lacks was forgotten here."""
    folder = libcu_headers()
    if folder is None:
        pytest.skip("no headers of libcu++: CUDA toolkit, or nvidia-cuda-cccl")
    opcodes = set()
    for header in folder.glob("*.h"):
        for text in re.findall(r"asm(?: volatile)?\s*\(((?:\s*\"[^\"]*\")+)", header.read_text()):
            lines = "".join(re.findall(r'"([^"]*)"', text)).replace("\\n", "\n").replace("\\t", "")
            opcodes |= {m[1] for m in re.finditer(r"(?:^|[{;\s])([a-z][\w.:]+)\s", lines)}
    opcodes = {o for o in opcodes if CHAPTERS.match(o)}
    assert len(opcodes) > 500
    assert not opcodes - known()
