"""The tree of docs/architecture.md: all folders, in the order of the floors, each in its own words."""

import importlib.util
import re

import pytest

from tests.docs.pages import PAGES, ROOT
from tests.house.test_floors import FLOOR_OF, room_of

SPEC = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
generate = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(generate)
PACKAGE = ROOT / "cute_fa4"
FOLDERS = ("cute_fa4", "tests", "benchmarks", "examples", "docs")
FILES = [
    f"/{path.relative_to(ROOT)}" for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")
]
# Of packages that docs/integrations.md speaks of.
OTHERS_FILES = {
    "flash_attn.py",
    "vllm/vllm_flash_attn/flash_attn_interface.py",
    "vllm/v1/attention/backends/flash_attn.py",
    "vllm/v1/attention/backends/fa_utils.py",
    "vllm/v1/attention/ops/flashmla.py",
}


def test_every_folder_says_in_one_sentence_what_lives_there():
    for path in PACKAGE.rglob("__init__.py"):
        name = f"{path.parent.relative_to(PACKAGE)}/" if path.parent != PACKAGE else "__init__.py"
        assert 20 < len(generate.first_sentence(name)) < 120, name


def test_the_tree_goes_from_the_top_floor_down_and_leaves_nothing_out():
    """A folder stands above what lies in it: sm100/ and emulator/ head their parts, whatever floor those are on."""
    names = generate.house()
    assert {
        "calls/",
        "sm100/",
        "sm100/two_tiles/",
        "emulator/checks/",
        "sm100/kernel.py",
        "interface.py",
    } < set(names)
    assert len(names) == len(set(names))
    modules = [f"cute_fa4.{n.removesuffix('.py').strip('/').replace('/', '.')}" for n in names]
    floors = [FLOOR_OF[room_of(module)] for module in modules if module != "cute_fa4.sm100"]
    assert floors == sorted(floors, reverse=True)
    for number, name in enumerate(names):
        assert not any(
            name.startswith(below) for below in names[number + 1 :] if below.endswith("/")
        )


def test_the_page_shows_the_tree():
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert page == generate.with_tree(page) and generate.tree() in page


@pytest.mark.parametrize("page", [p for p in PAGES if "/decisions/" not in p])
def test_files_that_a_page_names_exist(page):
    """`queue.py` or `work/queue.py`: some file of the repository ends like that. Decisions name what was there then."""
    text = (ROOT / page).read_text()
    named = set(re.findall(r"`([\w./-]+\.(?:py|cu))`", text)) - OTHERS_FILES
    missing = {n for n in named if not any(file.endswith(f"/{n}") for file in FILES)}
    assert not missing
