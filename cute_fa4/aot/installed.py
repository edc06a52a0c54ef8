"""Kernels that were installed as wheels, and which distribution this package came with.

A wheel of kernels (aot/wheel.py) has an entry point that names the package with its files:

    [cute_fa4.kernels]
    serving = cute_fa4_kernels_serving

The package is found, not imported: nothing of a wheel is executed before its files are verified.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from cute_fa4.aot import manifest
from cute_fa4.aot.manifest import LoadError

GROUP = "cute_fa4.kernels"
# Entries of a wheel in addition to the files of an export.
OF_A_PACKAGE = frozenset({"__init__.py", "__pycache__"})

# Two distributions of one package: each writes the same files, and removing one removes those of the other.
DISTRIBUTIONS = ("cute-fa4", "cute-fa4-runtime")


@dataclass(frozen=True)
class Kernels:
    """A set of kernels that an installed distribution brings."""

    name: str
    distribution: str
    directory: Path


def kernels() -> list[Kernels]:
    """Every set, by name. LoadError if there is none, or if one has no files."""
    found = {point.name: point for point in metadata.entry_points(group=GROUP)}
    if not found:
        raise LoadError(
            "no kernels are installed; accepted: a directory of cute_fa4.aot.export, or none with a wheel of "
            "kernels installed (python -m cute_fa4 export --catalogue serving --wheel DIR; pip install DIR/*.whl)"
        )
    return [_found(point) for _, point in sorted(found.items())]


def _found(point) -> Kernels:
    distribution = point.dist.name if point.dist else "?"
    spec = None
    # A name without dots is looked up without importing anything.
    if point.value.isidentifier():
        spec = importlib.util.find_spec(point.value)
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        raise LoadError(
            f"{distribution}: its kernels {point.name!r} are in no package {point.value!r}; install it again"
        )
    return Kernels(point.name, distribution, Path(places[0]))


def conflict() -> str | None:
    """The conflict in the installation of this package; None: there is none."""
    there = {name: manifest.version_of(name) for name in DISTRIBUTIONS}
    if None in there.values():
        return None
    both = " and ".join(f"{name} {version}" for name, version in there.items())
    return (
        f"{both} are both installed and own the same files, so removing or updating one breaks the other; "
        f"pip uninstall {' '.join(DISTRIBUTIONS)}, then install one of them"
    )
