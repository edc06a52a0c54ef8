"""The built site, as a reader meets it: no link leads nowhere, no picture is missing, nothing is cut off at the side.

Links are checked in the HTML, without a browser; widths and pictures in a headless browser, where one is installed. It
walks for a minute, so one of three commits sends it.
"""

import importlib.util
import re
import shutil

import pytest

from tests.docs import site
from tests.docs.pages import PAGES, ROOT
from tests.suite import turns

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("material") is None,
    reason="the site's tools are not installed: pip install -e '.[docs]'",
)
LEAST_LETTERS = 8.5  # pixels of a picture's text on a screen of 1280
DRAWN_LARGE = ("pipeline.svg", "speeds.svg", "decode.svg")
walks = turns.mark("site", turns.taken(0, turns.OF_CASES), seconds=60, commits=turns.OF_CASES)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / "site"
    done = site.build(folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def walked(built, tmp_path_factory):
    if site.browser() is None:
        pytest.skip(f"no browser is installed: looked for {', '.join(site.BROWSERS)}")
    report = site.walk(built, tmp_path_factory.mktemp("browser") / "profile")
    assert "error" not in report, report["error"]
    return report


def address_of(page: str) -> str:
    """
    >>> address_of("docs/index.md"), address_of("docs/reference/aot.md"), address_of("docs/decisions/README.md")
    ('/', '/reference/aot/', '/decisions/')
    """
    place = re.sub(r"(index|README)?\.md$", "", page.removeprefix("docs/"))
    return f"/{place}/".replace("//", "/")


def test_every_link_of_the_html_leads_somewhere(built):
    assert site.broken(built) == []


def test_a_link_that_leads_nowhere_is_found(built, tmp_path):
    """The check itself: a page that is gone, a heading that has another name, a picture that is missing."""
    copy = tmp_path / "site"
    shutil.copytree(built, copy)
    shutil.rmtree(copy / "numerics")
    page = copy / "performance" / "index.html"
    page.write_text(page.read_text().replace('id="speeds"', 'id="renamed"'))
    (copy / "pipeline.svg").unlink()
    wrong = "\n".join(site.broken(copy))
    assert "numerics/" in wrong and "index.html: ../pipeline.svg" in wrong
    assert "performance/index.html: #speeds" in wrong


@walks
def test_a_browser_reaches_every_page_by_links(walked):
    assert walked["broken"] == []
    assert set(walked["pages"]) == {address_of(page) for page in PAGES if page != "README.md"}
    assert all(link.startswith("https://") for link in walked["external"])


@walks
def test_nothing_is_wider_than_the_page(walked):
    assert walked["overflow"] == []


@walks
def test_pictures_are_there_can_be_read_and_say_what_they_show(walked):
    shown = walked["pictures"]
    assert {picture["source"].rsplit("/")[-1] for picture in shown} == {
        path.name for path in (ROOT / "docs").rglob("*.svg")
    }
    for picture in shown:
        assert picture["natural"] > 0 and picture["width"] > 0, picture
        assert picture["text"], picture
        drawn = next((ROOT / "docs").rglob(picture["source"].rsplit("/")[-1])).read_text()
        head = drawn[: drawn.index(">")]
        wide = re.search(r'viewBox="0 0 (\d+)|width="(\d+)"', head)
        letters = float(re.search(r'font-size="(\d+)"', head)[1])
        assert letters * picture["width"] / float(wide[1] or wide[2]) >= LEAST_LETTERS, picture


@walks
def test_the_large_pictures_open_large(walked):
    large = [p for p in walked["pictures"] if p["source"].endswith(DRAWN_LARGE)]
    assert len(large) >= len(DRAWN_LARGE)
    for picture in large:
        assert picture["opens"] and picture["natural"] > 1.5 * picture["width"], picture


@walks
def test_the_measure_finds_what_is_too_wide(built, tmp_path):
    """The test itself: a line of code, a table and a picture that do not fit, and a picture that is not there."""
    if site.browser() is None:
        pytest.skip(f"no browser is installed: looked for {', '.join(site.BROWSERS)}")
    copy = tmp_path / "site"
    copy.mkdir()
    shutil.copytree(built / "assets", copy / "assets")
    shutil.copytree(built / "stylesheets", copy / "stylesheets")
    page = (built / "index.html").read_text()
    wide = (
        f"<pre><code>{'x' * 400}</code></pre><table><tr><td>{'y' * 400}</td></tr></table>"
        '<div style="width: 3000px; height: 1px">z</div><img src="none.svg" alt="none" width="9">'
    )
    begin = page.index("<article")
    begin = page.index(">", begin) + 1
    (copy / "index.html").write_text(page[:begin] + wide + page[page.index("</article>") :])
    report = site.walk(copy, tmp_path / "profile")
    wrong = "\n".join(report["overflow"])
    for what in ("the page is 3", "xxx", "yyy", '"z" ends outside'):
        assert what in wrong
    assert [p["natural"] for p in report["pictures"]] == [0]
    assert any("numerics" in link for link in report["broken"])
