"""No table and no command prints a gain below LEAST_GAIN: the law of the function, and all tables of the documents."""

import re
from pathlib import Path

import pytest

from cute_fa4.system.gains import AS_FAST, LEAST_GAIN, change, ratio

DOCS = Path(__file__).parents[2] / "docs"
OF_SPEEDS = (
    "ratio",
    "over",
    "over FA4",
    "over it",
    "pairs / alone",
    "chosen / flash-attn-4",
    "longest first gains",
)
"""Heads of columns that have a speed over another one, or what it gains."""
COMPARED = ("pages", "claims", "invariant_decode", "invariant_prefill")
"""Generated tables whose numbers are all ratios."""


@pytest.mark.parametrize("share", [n / 1000 for n in range(-60, 61)])
def test_less_than_the_least_gain_is_as_fast(share):
    small = abs(share) < LEAST_GAIN
    assert (ratio(1 + share) == AS_FAST) == (change(share) == AS_FAST) == small
    assert change(share, noise=0.0) == change(share)
    assert (change(share, noise=0.05) == AS_FAST) == (abs(share) <= 0.05)


def tables() -> list[tuple[str, list[str], list[list[str]]]]:
    """(page and mark, heads, rows) of every table of the documents."""
    found = []
    for page in sorted(DOCS.rglob("*.md")):
        mark = ""
        lines = page.read_text().splitlines()
        for number, line in enumerate(lines):
            if begun := re.match(r"<!-- (\w+)", line):
                mark = begun[1]
            elif line.startswith("<!-- /"):
                mark = ""
            if line.startswith("|---") and number:
                of = lambda text: [cell.strip() for cell in text.split("|")[1:-1]]
                rows = []
                for row in lines[number + 1 :]:
                    if not row.startswith("|"):
                        break
                    rows.append(of(row))
                found.append((f"{page.relative_to(DOCS)}: {mark}", of(lines[number - 1]), rows))
    return found


def test_no_table_of_the_documents_prints_less_as_a_gain():
    """Two decimals of a ratio that differs by LEAST_GAIN or more are never 0.99, 1.00 or 1.01."""
    wrong, columns = [], 0
    for where, heads, rows in tables():
        compared = where.partition(": ")[2] in COMPARED
        for at, head in enumerate(heads):
            if not (compared or head in OF_SPEEDS):
                continue
            columns += 1
            for row in rows:
                cell = row[at].strip("*")
                small = re.fullmatch(r"0\.99\d?|1\.0[01]\d?|[+-]?[01]\.\d%", cell)
                if small:
                    wrong.append(f"{where}, {head}: {cell}")
    assert columns > 20 and not wrong, "\n".join(wrong)
