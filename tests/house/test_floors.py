"""Imports run downward only: every folder stands on a floor, and a file imports from its own floor's folder or below.

The list is the order of the house, the ground floor last. A folder may import itself, and whatever stands below it; two
folders of one floor do not know each other. Imports inside of functions count: they load the same code later.
"""

import functools
from collections import defaultdict

import pytest

from tests.suite import import_graph

# Rooms on the same floor are separated by blanks.
FLOORS = """
    benchmarks.model benchmarks.hopper_check benchmarks.sass_cost
    benchmarks.first_call benchmarks.host_overhead benchmarks.context_parallel
    benchmarks.cycle_model
    benchmarks.sass
    benchmarks
    cute_fa4.__main__
    cute_fa4.readiness
    cute_fa4.commands cute_fa4.integrations cute_fa4.bench cute_fa4.hopper
    cute_fa4.distributed
    cute_fa4.mla_sparse
    cute_fa4.mla
    cute_fa4.interface cute_fa4.indexer
    cute_fa4.operators
    cute_fa4.calls
    cute_fa4.compile_cache
    cute_fa4.aot
    cute_fa4.compiler
    cute_fa4.score_mods cute_fa4.reference cute_fa4.mxfp8 cute_fa4.nvfp4 cute_fa4.block_sparsity cute_fa4.intervals
    cute_fa4.cache_slots
    cute_fa4.sm100.choose
    cute_fa4.sm100.latent cute_fa4.sm100.wide
    cute_fa4.sm100.two_tiles cute_fa4.sm100.one_tile cute_fa4.sm100.few_rows
    cute_fa4.sm100.backward
    cute_fa4.sm100.pair cute_fa4.sm100.append cute_fa4.sm100.combine cute_fa4.sm100.indexer
    cute_fa4.sm100.kernel
    cute_fa4.sm100.roles
    cute_fa4.sm100.steps
    cute_fa4.sm100.sync
    cute_fa4.sm100.work
    cute_fa4.masks
    cute_fa4.sm100.blueprint
    cute_fa4.sm100.traced
    cute_fa4.sm100.operands cute_fa4.sm100.instructions
    cute_fa4.tma
    cute_fa4.layouts cute_fa4.operands
    cute_fa4.emulator
    cute_fa4.sm100
    cute_fa4.system cute_fa4.dtypes cute_fa4.scales
    cute_fa4
"""
FLOOR_OF = {
    room: number for number, line in enumerate(FLOORS.split("\n")[::-1]) for room in line.split()
}


MODULES = import_graph.modules(("cute_fa4", "benchmarks"))


def room_of(module: str) -> str:
    """The longest name of FLOORS that the module is or lies in."""
    parts = module.split(".")
    names = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next(name for name in names if name in FLOOR_OF)


@functools.cache
def imports() -> dict[str, set[str]]:
    """The imports of every module: read by the first test, not during collection."""
    return {
        module: import_graph.imported(module, path, MODULES) for module, path in MODULES.items()
    }


def upward(targets_of: dict[str, set[str]]) -> list[str]:
    """Each import that does not go down, with both files."""
    wrong = []
    for module, targets in targets_of.items():
        for target in targets:
            here, there = room_of(module), room_of(target)
            # The package's own __init__ holds lazy names and the version; anybody may read these.
            if here == there or target == "cute_fa4" or FLOOR_OF[there] < FLOOR_OF[here]:
                continue
            wrong.append(
                f"{MODULES[module]} imports {MODULES[target]}: {here} is not above {there}"
            )
    return sorted(wrong)


def circles(targets_of: dict[str, set[str]]) -> list[tuple[str, ...]]:
    """Modules that reach themselves: those left after repeatedly removing modules without imports or importers."""
    left = {module: set(targets) for module, targets in targets_of.items()}
    while True:
        targets = set().union(*left.values())
        ends = {module for module in left if not left[module] & set(left) or module not in targets}
        if not ends:
            return [tuple(sorted(left))] if left else []
        left = {module: t & set(left) - ends for module, t in left.items() if module not in ends}


def test_every_folder_and_file_has_a_floor():
    """A new room must say where it stands."""
    packages = {"cute_fa4", "cute_fa4.sm100"}
    assert {module for module in MODULES if room_of(module) in packages} == packages


def test_imports_run_downward():
    assert upward(imports()) == []


def test_there_is_no_circle_of_modules():
    assert circles(imports()) == []


def test_there_is_no_circle_of_rooms():
    rooms = defaultdict(set)
    for module, targets in imports().items():
        rooms[room_of(module)] |= {room_of(target) for target in targets} - {room_of(module)}
    assert circles(dict(rooms)) == []


@pytest.mark.parametrize(
    "module, target",
    [
        ("cute_fa4.sm100.steps.store", "cute_fa4.sm100.two_tiles.kernel"),
        ("cute_fa4.calls.launch", "cute_fa4.operators.library"),
        ("cute_fa4.sm100.operands.tma", "cute_fa4.sm100.instructions.exp2"),  # on the same floor
    ],
)
def test_an_upward_import_is_named_with_both_files(module, target):
    """The test itself: it must find what it looks for."""
    (message,) = set(upward(imports() | {module: imports()[module] | {target}})) - set(
        upward(imports())
    )
    assert str(MODULES[module]) in message and str(MODULES[target]) in message


FAMILIES = {"two_tiles", "one_tile", "wide", "few_rows", "latent"}


def arrows_of(package: str) -> set[tuple[str, str]]:
    """(room, room) for every pair of files or folders of a package of which the first imports the second."""

    def room(module: str) -> str:
        return module.removeprefix(f"{package}.").split(".")[0]

    inside = f"{package}."
    return {
        (room(module), room(target))
        for module, targets in imports().items()
        for target in targets
        if module.startswith(inside) and target.startswith(inside) and room(module) != room(target)
    }


def levels(arrows: set[tuple[str, str]]) -> int:
    """How many floors the rooms need if each stands above all that it imports."""
    below = defaultdict(set)
    for above, under in arrows:
        below[above].add(under)

    @functools.cache
    def floor(room: str) -> int:
        return 1 + max((floor(under) for under in below[room]), default=0)

    return max(map(floor, {room for arrow in arrows for room in arrow}))


def test_the_kernels_stay_readable():
    """The bounds of docs/decisions/0032, with rooms for the backward pass (pairs: 0070) and for the indexer (0041)."""
    folder = import_graph.ROOT / "cute_fa4" / "sm100"
    rooms = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    rooms |= {path.parent.name for path in folder.glob("*/*.py")}
    arrows = arrows_of("cute_fa4.sm100")
    assert len(rooms) <= 20 and levels(arrows) <= 10 and len(arrows) <= 96
    assert {arrow for arrow in arrows if set(arrow) <= FAMILIES} == {("latent", "few_rows")}
