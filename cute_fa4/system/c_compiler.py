"""The system's C compiler: source text -> shared library, kept in a cache directory by content.

build_shared_library("lanes", source)  ->  ~/.cache/cute_fa4/built/lanes-<sha256 of the source>.so, .so.sha256

A cached library is loaded as code. It is used only if this user wrote it, no other user can write it, and its hash
matches the recorded one. If no such directory exists, each process builds the library once, and a note gives the
reason.
"""

import functools
import hashlib
import logging
import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

from cute_fa4.system import forks
from cute_fa4.system.cache_directory import UnusableDirectory, is_ours, own_directory

LOG = logging.getLogger("cute_fa4")
DEFAULT_FLAGS = ("-O2", "-fPIC")


class CCompilerError(RuntimeError):
    """No C compiler was found, or it failed."""


def find_compiler():
    """Path of the C compiler: $CC, else cc, gcc or clang. Raises CCompilerError if there is none."""
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        path = shutil.which(os.path.expanduser(name)) if name else None
        if path:
            return path
    raise CCompilerError(
        "the emulator needs a C compiler and found none (looked for $CC, cc, gcc, clang); "
        "install one, for example `apt-get install gcc`, or set CC"
    )


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
    # -march=native code must not be shared by machines with a common home directory.
    host = _cpu_identity() if any("native" in flag for flag in flags) else ""
    key = "\0".join((compiler, *flags, host, source)).encode()
    file = f"{name}-{hashlib.sha256(key).hexdigest()[:24]}{suffix}"

    def build_in(directory):
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            text, built = Path(scratch) / f"{name}.c", Path(scratch) / file
            text.write_text(source)
            _run([compiler, *flags, str(text), *libraries, "-o", str(built)], f"compile {name}.c")
            _keep(built, directory)
        return directory / file

    try:
        directory = own_directory("built")
        return directory / file if _is_as_built(directory / file) else build_in(directory)
    except (UnusableDirectory, OSError) as error:
        _note(str(error))
    path = _private_directory() / file
    return path if path.exists() else build_in(path.parent)


def _keep(built, directory):
    """Move a file and a file with its hash to a directory."""
    noted = _noted(built)
    noted.write_text(_digest(built))
    for made in (noted, built):
        made.chmod(0o600)
        # Atomic: another process that builds the same library replaces it with equal bytes.
        os.replace(made, directory / made.name)


def _noted(path):
    return path.with_name(f"{path.name}.sha256")


def _is_as_built(path):
    """Whether a file exists that this user wrote, no other user can write, and whose hash matches the recorded one."""
    noted = _noted(path)
    try:
        ours = all(stat.S_ISREG(s.st_mode) and is_ours(s) for s in (path.lstat(), noted.lstat()))
        return ours and noted.read_text() == _digest(path)
    except FileNotFoundError:
        return False


def _digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@functools.cache
def _note(why):
    """Log each reason once."""
    LOG.warning("what the C compiler makes is kept for this process only: %s", why)


_private_directory = forks.ScratchDirectory("cute_fa4-built-").path


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
