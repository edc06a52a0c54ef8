"""An edit of any file that decides a kernel's code changes the keys of what is kept on disk."""

import shutil

import pytest

from benchmarks.cycle_model import kernels
from cute_fa4.aot import manifest
from cute_fa4.compiler import sources

FILES = [path.relative_to(sources.PACKAGE).as_posix() for path in sources.kernel_sources()]
FOLDERS = ("sm100", "layouts", "tma", "compiler")


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """A copy of the package, as <root>/cute_fa4."""
    root = tmp_path_factory.mktemp("copy")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(sources.PACKAGE, root / "cute_fa4", ignore=ignored)
    return root


def test_the_files_are_all_of_the_folders_that_make_kernels():
    """Also those in folders of folders, which a pattern that is not recursive leaves out."""
    expected = {
        path.relative_to(sources.PACKAGE).as_posix()
        for folder in FOLDERS
        for path in (sources.PACKAGE / folder).rglob("*.py")
    }
    assert expected <= set(FILES)
    assert {"aot/build.py", "aot/link.py", "aot/cuda_runtime.c", "aot/kernel.h"} <= set(FILES)


@pytest.mark.parametrize("file", FILES)
def test_an_edit_changes_every_key(copied, file, monkeypatch):
    """The fingerprint stands in the disk cache's key and in manifests; the cycle model has a key of its own."""
    monkeypatch.setattr(kernels, "ROOT", copied)
    variant = kernels.Variant(kernels.OURS)
    path = copied / "cute_fa4" / file
    before = _keys(copied, variant)
    text = path.read_bytes()
    path.write_bytes(text + b"\n")
    try:
        after = _keys(copied, variant)
    finally:
        path.write_bytes(text)
    assert all(a != b for a, b in zip(before, after, strict=True)), file
    assert _keys(copied, variant) == before


def _keys(root, variant) -> tuple:
    return sources.fingerprint(root / "cute_fa4"), kernels._key(variant)


def test_manifests_carry_the_fingerprint():
    assert manifest.versions()["source"] == sources.source_fingerprint() == sources.fingerprint()
