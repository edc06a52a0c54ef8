"""Tests are laid out as the package is: a folder of tests has the name of what it tests, so a path finds its test."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Test folders without a folder of the package: whole calls, pages, and the tools of the tests themselves.
WHOLES = {"attention", "benchmarks", "docs", "house", "invariance", "serving", "suite"}


def folders(of: Path) -> set[str]:
    return {path.name for path in of.iterdir() if path.is_dir() and path.name[0] not in "._"}


def test_every_folder_of_tests_is_a_folder_of_the_package():
    assert folders(ROOT / "tests") - WHOLES <= folders(ROOT / "cute_fa4")
    assert folders(ROOT / "tests" / "sm100") <= folders(ROOT / "cute_fa4" / "sm100")


def test_the_floors_that_a_call_goes_through_have_tests_of_their_own():
    assert {"calls", "operators", "compiler", "aot", "tma", "layouts", "emulator", "system"} <= (
        folders(ROOT / "tests")
    )
    assert {"two_tiles", "work", "sync", "instructions"} <= folders(ROOT / "tests" / "sm100")
