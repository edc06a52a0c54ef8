"""A cached C library is executed only if no other user can have written it, and if it is unchanged."""

import ctypes
import logging
import os

import pytest

from cute_fa4.system import c_compiler, forks
from tests.aot.conftest import python

SOURCE = "int number(void) { return %d; }"


@pytest.fixture
def cache(tmp_path, monkeypatch, caplog):
    """A separate cache directory, without earlier notes."""
    monkeypatch.setenv("CUTE_FA4_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(
        c_compiler, "_private_directory", forks.ScratchDirectory("cute_fa4-built-").path
    )
    c_compiler._note.cache_clear()
    caplog.set_level(logging.WARNING)
    return tmp_path / "cache"


def built(number=1):
    """The path of the library for a number, which is what it returns."""
    path = c_compiler.build_shared_library("number", SOURCE % number)
    assert ctypes.CDLL(str(path)).number() == number
    return path


def test_a_second_build_finds_the_first(cache, monkeypatch):
    path = built()
    assert path.parent == cache / "built" and path.parent.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(c_compiler, "_run", lambda *_: pytest.fail("built again"))
    assert built() == path


def planted(path, number):
    """A replaced library, as another user with write access could leave it."""
    other = c_compiler.build_shared_library("number", SOURCE % number)
    path.write_bytes(other.read_bytes())


def other_bytes(path, monkeypatch):
    planted(path, 666)


def bytes_and_hash_that_others_can_write(path, monkeypatch):
    planted(path, 666)
    noted = path.with_name(f"{path.name}.sha256")
    noted.write_text(c_compiler._digest(path))
    noted.chmod(0o666)


def no_hash(path, monkeypatch):
    planted(path, 666)
    path.with_name(f"{path.name}.sha256").unlink()


def a_link(path, monkeypatch):
    elsewhere = c_compiler.build_shared_library("number", SOURCE % 666)
    path.unlink()
    path.symlink_to(elsewhere)


def a_truncated_file(path, monkeypatch):
    path.write_bytes(path.read_bytes()[:-64])


@pytest.mark.parametrize(
    "spoil",
    [other_bytes, bytes_and_hash_that_others_can_write, no_hash, a_link, a_truncated_file],
    ids=lambda f: f.__name__,
)
def test_a_file_that_is_not_as_it_was_made_is_made_again(spoil, cache, monkeypatch):
    spoil(c_compiler.build_shared_library("number", SOURCE % 1), monkeypatch)
    built()


def open_to_all(cache, monkeypatch):
    (cache / "built").mkdir(parents=True)
    (cache / "built").chmod(0o777)
    return "writable by nobody else"


def of_another_user(cache, monkeypatch):
    (cache / "built").mkdir(parents=True, mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    return "belongs to user"


def read_only(cache, monkeypatch):
    # /proc takes no directories, not even from root, whom permissions do not stop.
    monkeypatch.setenv("CUTE_FA4_CACHE_DIR", "/proc/cute_fa4_cache")
    return "/proc/cute_fa4_cache"


def read_only_later(cache, monkeypatch):
    (cache / "built").mkdir(parents=True, mode=0o700)
    make = c_compiler.tempfile.TemporaryDirectory

    def refuse(**options):
        if options.get("dir") == cache / "built":
            raise OSError(30, "Read-only file system", str(cache))
        return make(**options)

    monkeypatch.setattr(c_compiler.tempfile, "TemporaryDirectory", refuse)
    return "Read-only file system"


@pytest.mark.parametrize(
    "spoil", [open_to_all, of_another_user, read_only, read_only_later], ids=lambda f: f.__name__
)
def test_a_directory_that_cannot_be_used_costs_a_build_a_process_and_a_note(
    spoil, cache, monkeypatch, caplog
):
    why = spoil(cache, monkeypatch)
    first = built()
    assert cache not in first.parents and first.parent.stat().st_mode & 0o777 == 0o700
    assert built() == first
    assert len(caplog.records) == 1 and why in caplog.text


CALL = """
import sys, torch, warnings
warnings.simplefilter("ignore")
from cute_fa4 import aot, flash_attn_func
from cute_fa4.sm100.append.config import AppendConfig
q = torch.ones(1, 8, 1, 64, dtype=torch.bfloat16)
assert torch.equal(flash_attn_func(q, q, q), q)
aot.export([AppendConfig("bf16", 64, 64, page_size=16)], sys.argv[1])
"""


def test_a_call_and_an_export_with_a_read_only_cache(tmp_path):
    done = python(CALL, tmp_path, CUTE_FA4_CACHE="on", CUTE_FA4_CACHE_DIR="/proc/cute_fa4_cache")
    assert "kept in memory only" in done.stderr and "for this process only" in done.stderr
    assert list(tmp_path.glob("*.so"))
