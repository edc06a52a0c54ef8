"""load(): registers exported kernels for the attention functions, without compiler, GPU or import of cutlass.

    load(dir)      manifest, versions, and the hash of every file: refused with the reason, or registered
    load()         the same with the directories of installed wheels
    first call     the file is read and hashed again, a private copy of these bytes is opened, and the function called

CUDA tensors run NAME.so. CPU tensors run NAME.o, linked with the emulator's runtime (which takes a C compiler), and
NAME.ptx.
"""

from __future__ import annotations

import ctypes
import os
import platform
import tempfile
import warnings
from pathlib import Path

from cute_fa4.aot import installed, manifest
from cute_fa4.aot.config_data import ConfigDataError, from_data
from cute_fa4.aot.manifest import LoadError, read_verified
from cute_fa4.compiler import functions
from cute_fa4.compiler.compiler import EMULATOR_CHECKS
from cute_fa4.system import forks
from cute_fa4.system.messages import shown

EXECUTORS = ("cuda", "emulator")


def load(directory=None, *, executors: tuple[str, ...] = EXECUTORS) -> list:
    """Verify a directory of cute_fa4.aot.export and register its kernels. Returns their configurations.

    directory  None: those of every installed wheel of kernels (python -m cute_fa4 export --wheel)
    executors  "cuda" for CUDA tensors, "emulator" for CPU tensors

    A configuration that has a function already, compiled or loaded, keeps it. Raises LoadError, and registers nothing,
    if any file is missing, damaged or foreign, or if the kernels were made by other versions.
    """
    if isinstance(executors, str) or not set(executors) <= set(EXECUTORS):
        accepted = ", ".join(map(repr, EXECUTORS))
        raise ValueError(f"executors: {shown(executors)}; accepted: a tuple of {accepted}")
    _warn_of_conflict()
    if directory is None:
        directories = [found.directory for found in installed.kernels()]
    else:
        directories = [Path(directory)]
    verified = [entry for each in directories for entry in _verified(each)]
    for where, config, kernel in verified:
        for executor in executors:
            functions.register(config, executor, maker(where, kernel, config, executor))
    return list(dict.fromkeys(config for _, config, _ in verified))


def _verified(directory: Path) -> list[tuple]:
    """(directory, configuration, record) of every kernel of a directory, all of whose files are right."""
    content = manifest.read_manifest(directory)
    manifest.check_versions(directory / manifest.MANIFEST, content["versions"])
    return [
        (directory, verified_config(directory, kernel), kernel) for kernel in content["kernels"]
    ]


def _warn_of_conflict() -> None:
    conflict = installed.conflict()
    if conflict:
        warnings.warn(conflict, RuntimeWarning, stacklevel=3)


def config_of(directory: Path, kernel: dict):
    """The configuration that a record of a manifest names; LoadError if it is none, or another one's."""
    where = f"{directory / manifest.MANIFEST}: kernel {kernel['name']}"
    try:
        config = from_data(kernel["config"])
    except (ConfigDataError, TypeError, ValueError) as error:
        raise LoadError(f"{where}: {error}") from None
    if config.name != kernel["name"] or kernel["symbol"] != f"__tvm_ffi_{config.name}":
        raise LoadError(
            f"{where}: its configuration is that of {config.name}, symbol {kernel['symbol']}: the manifest was "
            "edited; export again"
        )
    return config


def verified_config(directory: Path, kernel: dict):
    """The configuration of a kernel whose files are all as the manifest says and belong to it."""
    config = config_of(directory, kernel)
    for role in kernel["files"]:
        data = read_verified(directory, kernel, role)
        if role in ("object", "library", "c_library"):
            _check_elf(directory / kernel["files"][role]["path"], data)
    return config


def maker(directory: Path, kernel: dict, config, executor: str):
    """A function without arguments that opens the kernel and returns what calls it."""
    make = _for_cuda if executor == "cuda" else _for_emulator
    return lambda: make(directory, kernel, config)


_ELF_MACHINES = {"x86_64": 62, "aarch64": 183}  # e_machine, ELF gABI


def _check_elf(path: Path, data: bytes) -> None:
    wanted = _ELF_MACHINES.get(platform.machine())
    if data[:4] != b"\x7fELF":
        raise LoadError(f"{path}: no ELF file; export again")
    found = int.from_bytes(data[18:20], "little")
    if wanted is not None and found != wanted:
        name = next((n for n, number in _ELF_MACHINES.items() if number == found), str(found))
        raise LoadError(
            f"{path}: host code for {name}, this machine is {platform.machine()}; export on one like it"
        )


_private = forks.ScratchDirectory("cute_fa4-kernels-")


def open_private(data: bytes, name: str) -> ctypes.CDLL:
    """Open a library from bytes: the verified bytes are those that run, whatever happens to the file."""
    handle, path = tempfile.mkstemp(dir=_private.path(), prefix=name + "-", suffix=".so")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        return ctypes.CDLL(path)
    except OSError as error:
        raise LoadError(
            f"{name}: the library cannot be opened ({error}); if {tempfile.gettempdir()} is mounted noexec, set TMPDIR "
            "to a directory that is not"
        ) from error
    finally:
        os.unlink(path)


def _for_cuda(directory: Path, kernel: dict, config):
    import tvm_ffi  # its library, which NAME.so needs by name, is in the process from here on

    library = open_private(read_verified(directory, kernel, "library"), kernel["name"])
    return tvm_ffi.Function.__from_extern_c__(
        _address(library, kernel["symbol"]), keep_alive_object=library
    )


def _for_emulator(directory: Path, kernel: dict, config):
    import tvm_ffi

    from cute_fa4.emulator import EmulatedFunction
    from cute_fa4.emulator.host import driver_api
    from cute_fa4.emulator.host.runtime_library import link_host_function

    ptx = read_verified(directory, kernel, "ptx").decode()
    host_object = read_verified(directory, kernel, "object")
    address, library, number = link_host_function(host_object, kernel["symbol"])
    driver_api.register(number, ptx, _labels(config))
    return EmulatedFunction(
        LoadedKernel(
            tvm_ffi.Function.__from_extern_c__(address, keep_alive_object=library),
            kernel["name"],
            ptx,
        ),
        checks=EMULATOR_CHECKS,
    )


class LoadedKernel:
    """A function with the attributes of a compiled one."""

    def __init__(self, function, name: str, ptx: str):
        self.function, self.__name__, self.__ptx__ = function, name, ptx

    def __call__(self, *args):
        return self.function(*args)


def _labels(config):
    """The emulator's names for barriers and warps; an append kernel has none."""
    from cute_fa4.sm100.choose.config import FA4Config

    if not isinstance(config, FA4Config):
        return None
    from cute_fa4.compiler.labels import kernel_labels

    return kernel_labels(config)


def _address(library: ctypes.CDLL, symbol: str) -> int:
    try:
        function = getattr(library, symbol)
    except AttributeError:
        raise LoadError(f"the library has no {symbol}; export again") from None
    return ctypes.cast(function, ctypes.c_void_p).value or 0
