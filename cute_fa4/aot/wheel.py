"""A directory of exported kernels as a wheel, which cute_fa4.aot.load() finds when it is installed.

    cute_fa4_kernels_serving-0.1.0+0123456789ab-py3-none-manylinux_2_17_x86_64.whl
      cute_fa4_kernels_serving/        the files of the export, and an __init__.py that does nothing
      *.dist-info/entry_points.txt     [cute_fa4.kernels] serving = cute_fa4_kernels_serving

The version is that of the package with a hash of its kernel sources: kernels are accepted by these sources only. The
tag names the glibc that the host code asks for, so that pip refuses an older system. The package that
it requires has two names, which the format cannot state as alternatives: they are extras.

    pip install 'cute-fa4-kernels-serving[runtime]'     with cute-fa4-runtime: no compiler
    pip install 'cute-fa4-kernels-serving[compiler]'    with cute-fa4
"""

from __future__ import annotations

import base64
import hashlib
import platform
import re
import zipfile
from pathlib import Path

from cute_fa4.aot import manifest
from cute_fa4.aot.installed import DISTRIBUTIONS, GROUP, OF_A_PACKAGE
from cute_fa4.aot.manifest import ExportError

_EPOCH = (1980, 1, 1, 0, 0, 0)  # of every file, so that equal kernels make equal wheels
_OLDEST_GLIBC = (2, 17)  # of the first manylinux tag that names one (PEP 600)


def write(directory, out, name: str) -> Path:
    """Write the wheel of a directory of cute_fa4.aot.export into the directory `out`; its path.

    name  of the set, "serving" for cute-fa4-kernels-serving
    """
    directory, out = Path(directory), Path(out)
    content = manifest.read_manifest(directory)
    package = f"cute_fa4_kernels_{_checked(name)}"
    version = f"{content['versions']['cute_fa4']}+{content['versions']['source'][:12]}"
    files = {
        f"{package}/{path.name}": path.read_bytes()
        for path in sorted(directory.iterdir())
        if path.name not in OF_A_PACKAGE
        and not path.name.startswith(".")  # of an export that was killed
    }
    tag = f"py3-none-{_platform(files)}"
    files[f"{package}/__init__.py"] = f'"""Kernels of cute_fa4: {name}."""\n'.encode()
    info = f"{package}-{version}.dist-info"
    files |= {
        f"{info}/METADATA": _metadata(package, version, name, content).encode(),
        f"{info}/WHEEL": _wheel(tag).encode(),
        f"{info}/entry_points.txt": f"[{GROUP}]\n{name} = {package}\n".encode(),
    }
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{package}-{version}-{tag}.whl"
    _write_zip(path, files, f"{info}/RECORD")
    return path


def _checked(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9]+([-_.]?[A-Za-z0-9]+)*", name):
        raise ExportError(
            f"--name: {name!r}; accepted: letters and digits, with single '-', '_' or '.' between them"
        )
    return re.sub(r"[-.]", "_", name).lower()


def _platform(files: dict[str, bytes]) -> str:
    """The platform tag: the newest glibc whose symbols a library needs."""
    needed = [_OLDEST_GLIBC]
    for name, data in files.items():
        if name.endswith(".so"):
            found = re.findall(rb"GLIBC_(\d+)\.(\d+)", data)
            needed += [(int(major), int(minor)) for major, minor in found]
    major, minor = max(needed)
    return f"manylinux_{major}_{minor}_{platform.machine()}"


def _metadata(package: str, version: str, name: str, content: dict) -> str:
    series = manifest.series(content["versions"]["apache-tvm-ffi"])
    of_package = content["versions"]["cute_fa4"]
    arches = sorted({kernel["arch"] for kernel in content["kernels"]})
    full, runtime = DISTRIBUTIONS
    names = "\n".join(f"    {kernel['name']}" for kernel in content["kernels"])
    return f"""Metadata-Version: 2.1
Name: {package.replace("_", "-")}
Version: {version}
Summary: {len(content["kernels"])} attention kernels of cute_fa4 {of_package} for {" and ".join(arches)}: {name}
Requires-Python: >=3.10
Requires-Dist: apache-tvm-ffi=={series}.*
Provides-Extra: runtime
Requires-Dist: {runtime}=={of_package}; extra == "runtime"
Provides-Extra: compiler
Requires-Dist: {full}=={of_package}; extra == "compiler"
Description-Content-Type: text/plain

Kernels compiled ahead of time, for {full} or {runtime} {of_package}, and no other.
cute_fa4.aot.load() finds them.

{names}
"""


def _wheel(tag: str) -> str:
    return f"Wheel-Version: 1.0\nGenerator: cute_fa4\nRoot-Is-Purelib: false\nTag: {tag}\n"


def _write_zip(path: Path, files: dict[str, bytes], record: str) -> None:
    rows = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in files.items()]
    files = files | {record: ("\n".join([*rows, f"{record},,"]) + "\n").encode()}
    temporary = path.with_name(f".{path.name}.part")
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o100644 << 16
            archive.writestr(entry, data)
    temporary.replace(path)


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
