"""Directories for files that later processes execute: only the user of this process can write to them.

$CUTE_FA4_CACHE_DIR, else $XDG_CACHE_HOME/cute_fa4, else ~/.cache/cute_fa4
  kernels/     compiled kernels (cute_fa4/aot/disk_cache.py)
  built/       what the C compiler made (c_compiler.py)
"""

from __future__ import annotations

import os
from pathlib import Path

DIRECTORY = "CUTE_FA4_CACHE_DIR"
OTHERS_MAY_WRITE = 0o022


class UnusableDirectory(Exception):
    """A directory that must not hold files to execute; the text gives the reason."""


def cache_root() -> Path:
    """$CUTE_FA4_CACHE_DIR, else the platform's cache directory; not created."""
    root = os.environ.get(DIRECTORY)
    if root:
        return Path(root).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "cute_fa4"


def own_directory(name: str) -> Path:
    """The directory of that name in the cache, created. Raises UnusableDirectory."""
    root = cache_root()
    for directory in (root, root / name):  # a writer of the first could replace the second
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            status = directory.stat()
        except OSError as error:
            raise UnusableDirectory(f"{directory}: {error}") from None
        if not is_ours(status):
            raise UnusableDirectory(
                f"{directory}: belongs to user {status.st_uid}, mode {status.st_mode & 0o777:o}; accepted: your own, "
                "writable by nobody else, because what lies there is executed"
            )
    return directory


def is_ours(status: os.stat_result) -> bool:
    """Whether only the user of this process, or root, can have written the file with this status."""
    return status.st_uid == os.geteuid() and not status.st_mode & OTHERS_MAY_WRITE
