"""The system's C compiler: source text -> shared library, kept in a cache directory by content.

build_shared_library("lanes", source)  ->  ~/.cache/cute_fa4/lanes-<sha256>.so
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

DEFAULT_FLAGS = ("-O2", "-fPIC")


class CCompilerError(RuntimeError):
    """No C compiler was found, or it failed."""


def find_compiler():
    """Path of the C compiler: $CC, else cc, gcc or clang. Raises CCompilerError when there is none."""
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        path = shutil.which(name) if name else None
        if path:
            return path
    raise CCompilerError(
        "the emulator needs a C compiler and found none (looked for $CC, cc, gcc, clang); "
        "install one, for example `apt-get install gcc`, or set CC"
    )


def cache_directory():
    """Where built libraries are kept: $CUTE_FA4_CACHE_DIR, else $XDG_CACHE_HOME/cute_fa4, else ~/.cache/cute_fa4."""
    root = os.environ.get("CUTE_FA4_CACHE_DIR")
    path = (
        Path(root)
        if root
        else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "cute_fa4"
    )
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError:
        path = Path(tempfile.gettempdir()) / f"cute_fa4-{os.getuid()}"
        path.mkdir(parents=True, exist_ok=True)
    return path


def build_shared_library(name, source, flags=DEFAULT_FLAGS):
    """Compile C source text into a shared library and return its path; a second call finds it in the cache.

    flags  compiler flags; include -fPIC
    """
    return _build(name, source, (*flags, "-shared"), ".so", libraries=("-lm",))


def build_object(name, source, flags=DEFAULT_FLAGS):
    """Compile C source text into an object file and return its path, cached like build_shared_library."""
    return _build(name, source, (*flags, "-c"), ".o")


def link_shared_library(output, inputs, flags=()):
    """Link object files and libraries into the shared library ``output`` (not cached). Returns output."""
    _run(
        [find_compiler(), "-shared", *map(str, inputs), *flags, "-o", str(output)], f"link {output}"
    )
    return output


def _build(name, source, flags, suffix, libraries=()):
    compiler = find_compiler()
    # -march=native code must not travel between machines that share a home directory.
    host = _cpu_identity() if any("native" in flag for flag in flags) else ""
    key = "\0".join((compiler, *flags, host, source)).encode()
    path = cache_directory() / f"{name}-{hashlib.sha256(key).hexdigest()[:24]}{suffix}"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=path.parent) as directory:
            text, built = Path(directory) / f"{name}.c", Path(directory) / path.name
            text.write_text(source)
            _run([compiler, *flags, str(text), *libraries, "-o", str(built)], f"compile {name}.c")
            # Atomic: another process that builds the same library replaces it by equal bytes.
            os.replace(built, path)
    return path


def _run(command, what):
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise CCompilerError(
            f"the C compiler failed to {what}\n  {' '.join(command)}\n{result.stderr[-4000:]}"
        )


def _cpu_identity():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return "".join(
        sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
    )
