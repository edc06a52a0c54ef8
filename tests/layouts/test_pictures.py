"""The pictures in the docstrings are the code's output, and the package stays free of CuTe."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from cute_fa4.layouts import (
    SWIZZLE_NONE,
    PackedOperand,
    operand_tiles,
    pictures,
    swizzle,
    tmem_fragments,
    umma_descriptors,
)

HOME = {
    swizzle: ("swizzle128", "swizzle64", "swizzle32"),
    operand_tiles: ("storage", "steps", "block"),
    umma_descriptors: ("smem_fields", "instruction_fields"),
    tmem_fragments: ("fragment", "packed"),
}


@pytest.mark.parametrize("module, names", HOME.items(), ids=[module.__name__ for module in HOME])
def test_the_pictures_in_the_docstring_are_those_of_the_code(module, names):
    for name in names:
        _, picture = pictures.PICTURES[name]
        assert textwrap.indent(picture, "    ") in module.__doc__, f"paste picture {name!r} anew"


def test_every_picture_has_a_docstring():
    assert sorted(name for names in HOME.values() for name in names) == sorted(pictures.PICTURES)


def test_the_document_holds_every_picture():
    document = pictures.document()
    for title, picture in pictures.PICTURES.values():
        assert f"## {title}\n\n```text\n{picture}\n```" in document


def test_pictures_show_what_they_claim():
    """Two cells computed by hand, so that picture and code cannot be wrong together."""
    line_3 = pictures.PICTURES["swizzle128"][1].splitlines()[4].split()
    assert line_3 == ["line", "3", "3:3", "3:2", "3:1", "3:0", "3:7", "3:6", "3:5", "3:4"]
    without = pictures.swizzle_picture(SWIZZLE_NONE).splitlines()
    assert without[1].split() == ["line", "0", *(f"{row}:0" for row in range(8))]
    fp8 = pictures.packed_picture(PackedOperand(128, 8)).splitlines()
    assert fp8[4].startswith("bits 24-31  P[0, 3]") and fp8[4].endswith("P[0, 127]")


def run_python(*arguments):
    root = Path(__file__).parents[2]  # so that the package is found whether or not it is installed
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=True, cwd=root
    ).stdout


def test_the_module_prints_the_document():
    assert run_python("-m", "cute_fa4.layouts.pictures") == pictures.document()


def test_importing_layouts_imports_no_cute():
    code = "import sys, cute_fa4.layouts.pictures; print([m for m in sys.modules if m.startswith('cutlass')])"
    assert run_python("-c", code).strip() == "[]"
