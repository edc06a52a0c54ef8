"""TOML files as dictionaries, on every Python that the package supports."""

from __future__ import annotations

import sys
from pathlib import Path


def read(path: Path) -> dict:
    """The content of a file; ValueError with the path for one that cannot be read or parsed."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        try:
            import tomli as tomllib
        except ModuleNotFoundError:
            raise ValueError(
                "reading TOML on Python 3.10 needs a package: pip install tomli"
            ) from None
    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path}: {error}") from None
