"""The tree of docs/architecture.md: all folders, in the order of the floors, each in its own words."""

import importlib.util

from tests.docs.pages import ROOT
from tests.house.test_floors import FLOOR_OF, room_of

SPEC = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
generate = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(generate)
PACKAGE = ROOT / "cute_fa4"


def test_every_folder_says_in_one_sentence_what_lives_there():
    for path in PACKAGE.rglob("__init__.py"):
        name = f"{path.parent.relative_to(PACKAGE)}/" if path.parent != PACKAGE else "__init__.py"
        assert 20 < len(generate.first_sentence(name)) < 120, name


def test_the_tree_has_every_folder_and_the_files_beside_them():
    folders = {f"{p.parent.relative_to(PACKAGE)}/" for p in PACKAGE.rglob("*/__init__.py")}
    files = {
        str(p.relative_to(PACKAGE)) for p in [*PACKAGE.glob("*.py"), *PACKAGE.glob("sm100/*.py")]
    }
    wanted = folders | {name for name in files if not name.endswith("__init__.py")}
    assert sorted(generate.HOUSE) == sorted(wanted)


def test_the_tree_goes_from_the_top_floor_down():
    """sm100/ stands for what lies in it, emulator/ for its folders: neither has a floor of its own below its files."""
    rooms = [
        f"cute_fa4.{name.removesuffix('.py').strip('/').replace('/', '.')}"
        for name in generate.HOUSE
    ]
    floors = [FLOOR_OF[room_of(room)] for room in rooms if room != "cute_fa4.sm100"]
    assert floors == sorted(floors, reverse=True)


def test_the_page_shows_the_tree():
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert page == generate.with_tree(page) and generate.tree() in page
