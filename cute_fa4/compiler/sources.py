"""The files that decide a kernel's code: caches on disk and exports carry their fingerprint.

If a file were missing here, the disk could answer for an edited kernel with the one before the edit. So whole folders
count, with all folders below them.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]

# Code of the kernels, and how their host functions are compiled, called and linked.
FOLDERS = ("sm100", "layouts", "tma", "compiler")
OTHERS = (
    "operands.py",
    "aot/build.py",
    "aot/link.py",
    "aot/*.c",
    "aot/*.h",
    "emulator/ptx_only.py",
)


def kernel_sources(package: Path = PACKAGE) -> list[Path]:
    """Every file that decides a kernel's code, in one order everywhere."""
    patterns = [f"{folder}/**/*.py" for folder in FOLDERS] + list(OTHERS)
    return sorted({path for pattern in patterns for path in package.glob(pattern)})


def fingerprint(package: Path = PACKAGE) -> str:
    """A hash of these files: the version number alone does not change with every edit."""
    digest = hashlib.sha256()
    for path in kernel_sources(package):
        text = path.read_bytes()
        digest.update(f"{path.relative_to(package).as_posix()}\0{len(text)}\0".encode() + text)
    return digest.hexdigest()[:32]


@cache
def source_fingerprint() -> str:
    """The fingerprint of the package that runs, read once."""
    return fingerprint()
