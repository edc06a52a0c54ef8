"""Laws of single pages, and of the site as a whole."""

import re

import pytest

from cute_fa4 import masks
from cute_fa4.system.gains import LEAST_GAIN
from tests.docs.pages import PAGES, ROOT


def test_the_table_of_the_page_of_masks_has_every_mask():
    page = (ROOT / "docs" / "serving" / "masks.md").read_text()
    rows = re.findall(r"^\| `(\w+)\(.*?\)`(?:, `(\w+)\()?", page, flags=re.M)
    named = {name for row in rows for name in row if name}
    assert named == {name for name in masks.__all__ if name.islower()}  # the others are kinds


def links(page: str) -> list[str]:
    """Targets of links and pictures inside of the repository, relative to the page."""
    return re.findall(r"\]\((?!https?:)([^)#\s]+)[^)]*\)", (ROOT / page).read_text())


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page):
    for target in links(page):
        assert ((ROOT / page).parent / target).exists(), target


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = re.findall(r"[\w/.-]+\.md", navigation)
    assert sorted(listed) == sorted(p.removeprefix("docs/") for p in PAGES if p != "README.md")


def test_aligned_docstrings_stay_aligned_on_the_site():
    pytest.importorskip(
        "griffe", reason="the site's tools are not installed: pip install -e '.[docs]'"
    )
    import doctest
    import importlib.util

    path = ROOT / "docs" / "docstrings.py"
    spec = importlib.util.spec_from_file_location("docstrings", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    results = doctest.testmod(module)
    assert results.attempted and not results.failed
    picture = "row 0   0 1 2   3\nrow 1   4 5 6   7"
    assert (
        module.as_markdown(f"{picture}\n\n>>> f()\n1") == f"```text\n{picture}\n\n>>> f()\n1\n```"
    )
    table = module.as_markdown("out    x < y,\n       [z]\nlonger one\n\nRaises it.")
    assert "<td>x &lt; y, [z]</td>" in table and "<td>one</td>" in table and table.endswith("it.")
    assert module.as_markdown("a  b\nRaises c.").endswith("</table>\n\nRaises c.")
    assert module.as_markdown("`a_b` is a_b < [c]") == "`a_b` is a\\_b &lt; \\[c\\]"


GENERATED = "<!-- Written by docs/generate.py"


@pytest.mark.parametrize("page", [p for p in PAGES if "/decisions/" not in p])
def test_a_page_is_read_in_one_go(page):
    """250 lines hold one idea with its tables. Decisions and pages printed from the code are references."""
    text = (ROOT / page).read_text()
    assert text.startswith(GENERATED) or len(text.splitlines()) <= 250


_SHARE = r"(?<![\d.,])([01](?:\.\d+)?) ?%"
SMALL_GAINS = (
    re.compile(rf"{_SHARE} (?:faster|gains?\b|better|quicker|shorter)"),
    re.compile(
        rf"\b(?:gain(?:s|ed)?|faster|wins?|saved?|saves|quicker|shorter)(?: [a-z]+){{0,3}} {_SHARE}"
    ),
    re.compile(r"(?<![\d.])1\.0[01]\d* times (?:as fast|the speed|faster)"),
)
TEXTS = [*PAGES, "CHANGELOG.md", "benchmarks/README.md", "cute_fa4/sm100/blueprint/tuning.toml"]


def small_gains(text: str) -> list[str]:
    """
    >>> small_gains("pairs save 1.1 %, or 2 %; 0.5 % faster; 11 % faster; 1.01 times as fast; less than 2 %")
    ['0.5 % faster', 'save 1.1 %', '1.01 times as fast']
    """
    text = " ".join(text.split())
    return [found[0] for pattern in SMALL_GAINS for found in pattern.finditer(text)]


@pytest.mark.parametrize("page", TEXTS)
def test_no_text_prints_a_gain_below_the_least(page):
    """Below gains.LEAST_GAIN no model and no timer tells a gain; tables print "as fast" by system/gains.py."""
    assert LEAST_GAIN == 0.02
    assert not small_gains((ROOT / page).read_text())
