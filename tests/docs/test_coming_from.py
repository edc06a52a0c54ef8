"""docs/coming_from.md: both calls of every row run, and give the same numbers."""

import re

import pytest
import torch

from cute_fa4 import EmulatorWarning
from cute_fa4.calls.operands import foreign
from cute_fa4.compiler import compiler
from cute_fa4.compiler import functions as registry
from tests.docs import definition, peers
from tests.docs.pages import ROOT, blocks

pytestmark = pytest.mark.filterwarnings(f"ignore::{EmulatorWarning.__module__}.EmulatorWarning")

PAGE = foreign.PAGE
TEXT = (ROOT / PAGE).read_text()
SECTIONS = dict(re.findall(r"^## ([\w-]+)\n(.*?)(?=^## |\Z)", TEXT, flags=re.M | re.S))
ROW = re.compile(r"^\| `([^|`]+)` \| `([^|`]+)` \| [^|]+ \|$", flags=re.M)
ROWS = [
    pytest.param(section, *row, id=f"{section}-{number}")
    for section, text in SECTIONS.items()
    for number, row in enumerate(ROW.findall(text))
]


@pytest.fixture
def names(monkeypatch):
    """The names that the page defines; the definition replaces kernels."""
    monkeypatch.setenv("CUTE_FA4_CACHE", "off")  # whose kernels are exported ones
    monkeypatch.setattr(registry, "_functions", {})
    monkeypatch.setattr(registry, "_seconds", {})
    monkeypatch.setattr(compiler, "compile_function", definition.compiled)

    def fresh() -> dict:
        found: dict = {}
        exec(blocks(PAGE)[0].code, found)
        return found

    return fresh


def value(cell: str, names: dict):
    *before, last = cell.split("; ")
    for statement in before:
        exec(statement, names)
    results = eval(last, names)
    return (results if isinstance(results, tuple) else (results,)), names


@pytest.mark.parametrize("section, theirs, ours", ROWS)
def test_both_calls_give_the_same_numbers(section, theirs, ours, names):
    package = peers.PACKAGES.get(section)
    expected, after_theirs = value(
        theirs, names() | ({} if package is None else peers.names(package))
    )
    found, after_ours = value(ours, names())
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        # Outputs are rounded to bf16 once; torch rounds the weights, too.
        assert a.shape == b.shape and (a.double() - b.double()).abs().max() < 0.02
    for cache in ("k_pages", "v_pages"):  # a call that appends writes the same rows
        assert torch.equal(after_ours[cache], after_theirs[cache])


def test_every_package_has_its_table():
    assert [*SECTIONS][:5] == [
        "flash-attn",
        "flash-attn-4",
        "scaled_dot_product_attention",
        "FlashInfer",
        "vLLM",
    ]
    calls = re.findall(r"^\| `[^|]*\(", TEXT, flags=re.M)
    assert len(ROWS) == len(calls) >= 20


def test_the_table_of_arguments_is_the_one_in_the_code():
    for name, (off, instead) in (foreign.UNSUPPORTED | foreign.OTHER_NAMES).items():
        passes = ", ".join(f"`{each!r}`" for each in off) or "never"
        assert f"| `{name}` | {passes} | {instead} |\n" in TEXT
