"""Which ptxas makes the machine code: what the DSL takes, what cubins say, and what the pages claim are one thing."""

import re
import sys
from pathlib import Path

import pytest

from benchmarks.cycle_model import records
from cute_fa4.compiler import toolkit

ROOT = Path(__file__).resolve().parents[2]


def test_the_flavour_is_the_one_that_the_dsl_takes():
    """Our rule is a copy of the DSL's, which is read where it is written: in the module that it loaded."""
    import cutlass  # noqa: F401

    loaded = sys.modules["cutlass._mlir._mlir_libs._cutlass_ir"].__file__
    assert toolkit.flavour() == re.search(r"_cutlass_ir\.(cu\d+)\.", loaded)[1]


def test_the_extra_that_brings_both_toolkits_is_a_dependency_and_installed():
    project = (ROOT / "pyproject.toml").read_text()
    assert '"nvidia-cutlass-dsl[cu13]>=4.8,<5"' in project
    assert toolkit.installed() == ("cu12", "cu13"), (
        "pip install 'nvidia-cutlass-dsl[cu13]>=4.8,<5': without it code is made by another ptxas"
    )


def test_the_ptxas_is_that_of_the_flavour():
    major = toolkit.ptxas().partition(".")[0]
    assert f"cu{major}" == toolkit.flavour()


def test_a_cubin_without_a_note_has_no_version():
    assert toolkit.ptxas_of(b"\x7fELF and nothing else") is None


@pytest.mark.parametrize("driver, expected", [(12080, "cu12"), (13000, "cu13"), (11080, None)])
def test_the_driver_decides_between_the_flavours(driver, expected):
    """12.8 is the first driver with sm_100; 11.8 stands for one that runs neither."""
    assert toolkit.chosen(("cu12", "cu13"), driver) == expected


def test_records_are_of_the_ptxas_that_compiles_here():
    """The pages and the build differ: python benchmarks/model.py --record --only cute_fa4."""
    assert {one["ptxas"] for one in records.records().values()} == {toolkit.ptxas()}
