"""manifest.json of a directory of exported kernels: its contents, the versions that made it, and every file's hash.

    {"format": 2, "arch": "sm_100a", "host_target": "x86-64-v2",
     "versions": {"cute_fa4": ..., "source": ..., "apache-tvm-ffi": ..., "nvidia-cutlass-dsl": ..., "toolkit": ...},
     "kernels": [{"name", "symbol", "config", "parameters", "ptxas", "files": {role: {"path", "bytes", "sha256"}}}]}

toolkit is the flavour of the compiler, "cu13" (compiler/toolkit.py), ptxas the version named in the cubin of a kernel.

A hash detects damage and mixed-up files. It is not a signature: anyone who can write the directory can write the
manifest, so keep it where only the deployer writes.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from functools import cache
from importlib import metadata
from pathlib import Path

import cute_fa4
from cute_fa4.compiler import toolkit
from cute_fa4.compiler.sources import source_fingerprint

MANIFEST = "manifest.json"
FORMAT = 2  # 2: a configuration names its schedule


class ExportError(RuntimeError):
    """Kernels could not be exported; the text says which and what to do."""


class LoadError(RuntimeError):
    """Exported kernels were refused: damaged, foreign, or made by or for something else."""


class DamagedListError(LoadError):
    """A manifest that lists no kernel that could be loaded; problem: without the remedy."""

    def __init__(self, problem: str, remedy: str = "export again"):
        super().__init__(f"{problem}; {remedy}")
        self.problem = problem


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def version_of(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


@cache
def versions() -> dict:
    """Versions: this package, its kernel sources, the compiler of host functions and the library that calls them."""
    found = {name: version_of(name) for name in ("apache-tvm-ffi", "nvidia-cutlass-dsl")}
    return {
        "cute_fa4": cute_fa4.__version__,
        "source": source_fingerprint(),
        **found,
        "toolkit": toolkit.flavour(),
    }


def file_record(path: Path) -> dict:
    data = path.read_bytes()
    return {"path": path.name, "bytes": len(data), "sha256": sha256(data)}


def write_atomically(path: Path, data: bytes) -> None:
    """Write atomically: the file is the old one or the new one, never a part."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def write_manifest(directory: Path, content: dict) -> None:
    text = json.dumps({"format": FORMAT, **content}, indent=1) + "\n"
    write_atomically(directory / MANIFEST, text.encode())


def read_manifest(directory: Path) -> dict:
    """The checked manifest of a directory: its format and that every kernel has what a loader reads."""
    path = directory / MANIFEST
    if directory.is_file():
        inside = f"; pass {directory.parent}" if directory.name == MANIFEST else ""
        raise LoadError(
            f"{directory}: a file; accepted: a directory written by cute_fa4.aot.export{inside}"
        )
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise LoadError(
            f"{directory}: no {MANIFEST}; accepted: a directory written by cute_fa4.aot.export"
        ) from None
    except UnicodeDecodeError as error:
        raise DamagedListError(f"{path}: cannot be read ({error})") from error
    except OSError as error:
        raise LoadError(f"{path}: cannot be read ({error}); export again") from error
    if not text.strip():
        raise DamagedListError(f"{path}: empty", "copy the directory again or export again")
    try:
        content = json.loads(text)
    except ValueError as error:
        raise DamagedListError(f"{path}: damaged, not JSON ({error})") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        found = content.get("format") if isinstance(content, dict) else None
        raise LoadError(
            f"{path}: format {found!r}; accepted: {FORMAT}; export again with this version"
        )
    kernels = content.get("kernels")
    if not isinstance(kernels, list) or not isinstance(content.get("versions"), dict):
        raise DamagedListError(f"{path}: without kernels or versions")
    if not kernels:
        raise DamagedListError(
            f"{path}: a list of no kernels",
            "accepted: one or more; the export has completed none: wait for it, or export again",
        )
    for kernel in kernels:
        _check_kernel(path, kernel)
    return content


def _check_kernel(path: Path, kernel) -> None:
    shaped = isinstance(kernel, dict) and all(
        isinstance(kernel.get(key), kind)
        for key, kind in (("name", str), ("symbol", str), ("config", dict), ("files", dict))
    )
    if not shaped:
        raise DamagedListError(f"{path}: a kernel without name, symbol, config or files")
    for role, record in kernel["files"].items():
        ok = (
            isinstance(record, dict)
            and isinstance(record.get("path"), str)
            and isinstance(record.get("sha256"), str)
            # A name, so that a manifest cannot point out of its directory.
            and record["path"] == os.path.basename(record["path"])
            and record["path"] not in ("", ".", "..")
        )
        if not ok:
            raise DamagedListError(
                f"{path}: kernel {kernel['name']}: the record of {role!r} is damaged or points out of the directory"
            )


def check_versions(path: Path, found: dict) -> None:
    """LoadError unless the kernels were made by this very source, for this series of TVM-FFI."""
    here = versions()
    for name in ("cute_fa4", "source"):
        if found.get(name) != here[name]:
            what = "the kernel sources" if name == "source" else name
            raise LoadError(
                f"{path}: made by {what} {found.get(name)!r}, this is {here[name]!r}; a kernel's parameters may "
                "differ between them: export again with the installed version, or install the one that exported"
            )
    ours, theirs = here["apache-tvm-ffi"], found.get("apache-tvm-ffi")
    if ours is None:
        raise LoadError(
            f"{path}: apache-tvm-ffi is not installed; pip install 'apache-tvm-ffi=={theirs}'"
        )
    if series(ours) != series(theirs):
        raise LoadError(
            f"{path}: made for apache-tvm-ffi {theirs}, installed is {ours}; accepted: the same series "
            f"{series(theirs)}; pip install 'apache-tvm-ffi=={theirs}'"
        )


def series(version) -> str:
    """The series of a version; all versions of a series call kernels in the same way.

    >>> series("0.1.15.post2")
    '0.1'
    """
    return ".".join(str(version).split(".")[:2])


def read_verified(directory: Path, kernel: dict, role: str) -> bytes:
    """The bytes of one file, whose hash is the manifest's. Callers then use these bytes, not the path."""
    record = kernel["files"].get(role)
    if record is None:
        raise LoadError(f"{directory}: kernel {kernel['name']} has no {role} file; export again")
    path = directory / record["path"]
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LoadError(
            f"{path}: named by the manifest and unreadable ({error}); export again"
        ) from error
    if len(data) != record.get("bytes"):
        raise LoadError(
            f"{path}: {len(data)} bytes, the manifest says {record.get('bytes')}: truncated or replaced; "
            "copy the directory again or export again"
        )
    digest = sha256(data)
    if digest != record["sha256"]:
        raise LoadError(
            f"{path}: SHA-256 {digest[:16]}..., the manifest says {record['sha256'][:16]}...: damaged or replaced; "
            "copy the directory again or export again"
        )
    return data
