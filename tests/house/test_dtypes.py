"""Properties of dtypes stand in one table, cute_fa4/dtypes.py: no other module names a quantized dtype.

A dtype can join by a row only if no other module lists names or counts whole bytes. So no module names a quantized
dtype, its type in torch or its type in the compiler, and none decides by the bytes of an element. The emulator has
formats of its own, because it checks what the package generates.
"""

import ast
from pathlib import Path

import pytest

from cute_fa4.dtypes import CACHED, DTYPES, E8M0

ROOT = Path(__file__).parents[2]
TABLE = "cute_fa4/dtypes.py"
APART = "cute_fa4/emulator/"

# File -> how often it names a quantized dtype. The list only shrinks.
NAMED = {
    "cute_fa4/hopper/cases.py": 39,  # problems of a check: data
}
# Names that cannot say half a byte, or list dtypes a second time.
GONE = {"dtype_bytes", "DTYPE_BYTES", "elem_bytes", "FP8_DTYPES", "has_fp8"}

NARROW = [*(DTYPES[name] for name in CACHED), E8M0]
NAMES = {row.name for row in NARROW}
TYPES = {row.torch_name for row in NARROW} | {DTYPES[name].cutlass_name for name in CACHED}


def narrow_names(source: str) -> int:
    """How often code, not its docstrings and comments, names a quantized dtype."""
    return sum(
        (isinstance(node, ast.Constant) and node.value in NAMES)
        or (isinstance(node, ast.Attribute) and node.attr in TYPES)
        for node in ast.walk(ast.parse(source))
    )


def words(source: str) -> set[str]:
    """Names and attributes of code, those of parameters and keywords too."""
    tree = ast.walk(ast.parse(source))
    found = ("id", "attr", "arg", "name")
    return {getattr(node, field, None) for node in tree for field in found}


def compares_itemsize(source: str) -> bool:
    """Whether code decides by the bytes of an element."""
    return any(
        isinstance(part, ast.Attribute) and part.attr == "itemsize"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Compare)
        for part in (node.left, *node.comparators)
    )


def sources() -> dict[str, str]:
    paths = sorted((ROOT / "cute_fa4").rglob("*.py"))
    found = {path.relative_to(ROOT).as_posix(): path.read_text() for path in paths}
    return {name: text for name, text in found.items() if not name.startswith(APART)}


def test_no_other_module_names_a_quantized_dtype():
    found = {name: narrow_names(text) for name, text in sources().items() if name != TABLE}
    assert {name: count for name, count in found.items() if count} == NAMED


def test_no_module_counts_bytes_of_an_element():
    assert not {name: words(text) & GONE for name, text in sources().items() if words(text) & GONE}
    assert not [name for name, text in sources().items() if compares_itemsize(text)]


@pytest.mark.parametrize("row", DTYPES.values(), ids=DTYPES)
def test_a_row_agrees_with_the_types_that_it_names(row):
    """Bits and largest numbers are torch's; the compiler's type is as wide."""
    import torch

    assert row.torch.itemsize * 8 == row.bits * row.in_byte and row.bits == row.cutlass.width
    assert DTYPES[row.element].bits == row.bits * row.in_byte
    if row.in_byte > 1:  # torch's type is of a byte, and torch converts none
        return
    if row.torch.is_floating_point:
        assert torch.finfo(row.torch).max == row.largest
    if row.is_quantized:
        one = torch.tensor([row.quantized.one], dtype=torch.uint8).view(row.torch)
        assert one.item() == 1.0
        wide = DTYPES[row.quantized.dequantized_to].torch
        every = torch.arange(256, dtype=torch.uint8).view(row.torch).float()
        torch.testing.assert_close(every.to(wide).float(), every, rtol=0, atol=0, equal_nan=True)


def test_a_row_has_types_of_its_own():
    """A type is found by its name in torch; in the compiler a bool is a byte. One row has another's numbers."""
    apart = [row for row in DTYPES.values() if row.numbers is None]
    assert len({row.torch_name for row in apart}) == len(apart) == len(DTYPES) - 1
    operands = [row for row in DTYPES.values() if row.is_operand]
    assert len({row.cutlass_name for row in operands}) == len(operands)
    assert len({(row.mma_kind, row.mma_code) for row in operands}) == len(operands)


def test_half_a_byte_can_be_said():
    """A row of four bits has sizes; elements that end within a byte have none."""
    narrow = DTYPES["e2m1"]
    assert narrow.bytes_of(64) == 32 and narrow.elements_in(32) == 64
    with pytest.raises(ValueError, match="elements: 3 of 4 bits; accepted: .* whole bytes"):
        narrow.bytes_of(3)


def test_the_counts_see_what_they_count():
    """Docstrings may name dtypes; code may not."""
    source = '"""As e4m3."""\nx = torch.float8_e5m2\nif a.itemsize == 1:\n    b(has_fp8="e4m3")\n'
    assert narrow_names(source) == 2
    assert words(source) >= {"has_fp8", "itemsize"} and compares_itemsize(source)
