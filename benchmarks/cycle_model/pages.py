"""The pages of docs/performance/ and their generated tables: what stands between <!-- name --> and <!-- /name -->."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "performance"
PAGES = tuple(sorted(FOLDER.glob("*.md")))
# Others that have tables of records.
OTHERS = (FOLDER.parent / "invariance.md",) + tuple(
    FOLDER.parent / "serving" / name
    for name in ("caches.md", "four_bits.md", "indexer.md", "skip_softmax.md")
)


def _pattern(name: str) -> re.Pattern:
    """The marks of a table, of which the first may say who writes it."""
    return re.compile(rf"(<!-- {name}(?:: [^\n]*)? -->\n)(.*?)(<!-- /{name} -->)", re.DOTALL)


def printed(text: str, name: str) -> str:
    """The text between the marks of a table. ValueError without the marks."""
    found = _pattern(name).search(text)
    if not found:
        raise ValueError(f"the page has no marks <!-- {name} --> ... <!-- /{name} -->")
    return found[2].rstrip("\n")


def fill(text: str, name: str, table: str) -> str:
    """Replace what stands between the marks of a generated table. ValueError without the marks."""
    printed(text, name)
    return _pattern(name).sub(lambda found: f"{found[1]}{table}\n{found[3]}", text)


def page_of(pages: dict[Path, str], name: str) -> Path:
    """The one page that has the marks of a table. ValueError if none has, or more than one."""
    places = [path for path, text in pages.items() if _pattern(name).search(text)]
    if len(places) != 1:
        raise ValueError(f"<!-- {name} --> is on {len(places)} pages; accepted: on one")
    return places[0]


def filled(pages: dict[Path, str], tables: dict[str, str]) -> dict[Path, str]:
    """Every table on the one page that has its marks. ValueError for a table that none has, or more than one."""
    pages = dict(pages)
    for name, table in tables.items():
        path = page_of(pages, name)
        pages[path] = fill(pages[path], name, table)
    return pages
