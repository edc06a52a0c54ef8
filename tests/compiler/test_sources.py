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
def test_an_edit_changes_every_key(copied, unedited, file):
    """The fingerprint is part of the disk cache's key and of manifests; the cycle model has a separate key."""
    path = copied / "cute_fa4" / file
    text = path.read_bytes()
    path.write_bytes(text + b"\n")
    try:
        after = _keys(copied)
    finally:
        path.write_bytes(text)
    assert all(a != b for a, b in zip(unedited, after, strict=True)), file


def test_the_same_sources_have_the_same_keys(copied, unedited):
    assert _keys(copied) == unedited


@pytest.fixture(scope="module")
def unedited(copied):
    return _keys(copied)


def _keys(root) -> tuple:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "ROOT", root)
        return sources.fingerprint(root / "cute_fa4"), kernels._key(kernels.Variant(kernels.OURS))


def test_manifests_carry_the_fingerprint():
    assert manifest.versions()["source"] == sources.source_fingerprint() == sources.fingerprint()
