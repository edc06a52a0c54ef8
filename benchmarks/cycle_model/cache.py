"""Expensive results, cached in files whose key includes everything that they depend on.

$CUTE_FA4_MODEL_CACHE names the folder; without it the user's cache folder is taken.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path


def folder() -> Path:
    """Where the files are."""
    named = os.environ.get("CUTE_FA4_MODEL_CACHE")
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return Path(named) if named else home / "cute_fa4" / "cycle_model"


def key(*parts: bytes | str | Path) -> str:
    """A name for these contents; a Path stands for the file's."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.read_bytes() if isinstance(part, Path) else part
        data = data.encode() if isinstance(data, str) else data
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:16]


def stored(name: str, its_key: str, make: Callable[[], object]):
    """The cached result of make() for this name and key; it must be picklable."""
    path = folder() / f"{name.replace(' ', '_')}-{its_key}.pickle"
    if path.exists():
        return pickle.loads(path.read_bytes())
    made = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_bytes(pickle.dumps(made))
    temporary.replace(path)
    return made
