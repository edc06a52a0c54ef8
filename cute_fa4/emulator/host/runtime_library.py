"""Host objects of the CuTe DSL -> functions whose CUDA calls go to driver_api.py.

    host.o (from the DSL) + runtime_library.o + libtvm_ffi.so  --cc -shared-->  host.so  --dlopen-->  __tvm_ffi_NAME

The DSL binds its own runtime library when it makes a function callable. Linking the object file against the
emulator's runtime instead lets both kinds of functions coexist in one process.
"""

import ctypes
import itertools
from pathlib import Path

from cute_fa4.emulator.host import driver_api
from cute_fa4.system import c_compiler, forks

_POINTER = ctypes.c_void_p
_OUT_POINTER, _OUT_INT = ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int)
_PROTOTYPES = (
    ("load", ctypes.CFUNCTYPE(ctypes.c_int, _OUT_POINTER, ctypes.c_long)),
    ("get_kernel", ctypes.CFUNCTYPE(ctypes.c_int, _OUT_POINTER, _POINTER, ctypes.c_char_p)),
    ("device_attribute", ctypes.CFUNCTYPE(ctypes.c_int, _OUT_INT, ctypes.c_int)),
    ("kernel_attribute", ctypes.CFUNCTYPE(ctypes.c_int, _OUT_INT, ctypes.c_int, _POINTER)),
    ("set_kernel_attribute", ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, ctypes.c_int, ctypes.c_int)),
    ("launch", ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, _POINTER, _OUT_POINTER)),
    (
        "encode_tensor_map",
        ctypes.CFUNCTYPE(
            ctypes.c_int,
            _POINTER,
            ctypes.c_int,
            ctypes.c_uint,
            _POINTER,
            *[ctypes.POINTER(ctypes.c_uint64)] * 2,
            *[ctypes.POINTER(ctypes.c_uint32)] * 2,
            *[ctypes.c_int] * 4,
        ),  # fmt: skip
    ),
    ("unsupported", ctypes.CFUNCTYPE(None, ctypes.c_char_p)),
)
_numbers = itertools.count(1)


class _Callbacks(ctypes.Structure):
    """struct callbacks of runtime_library.c."""

    _fields_ = _PROTOTYPES


_callbacks = None
scratch_directory = forks.ScratchDirectory("cute_fa4-emulator-").path
"""For objects and kept PTX."""


def link_host_function(host_object, symbol):
    """Link the bytes of a host object against the emulator and load it.

    Returns (address of ``symbol``, library object to keep alive, number of the host function: the key of
    driver_api.register). Raises CCompilerError when the C compiler fails.
    """
    import tvm_ffi.libinfo

    number = next(_numbers)
    stem = scratch_directory() / f"host-{number}"
    stem.with_suffix(".o").write_bytes(host_object)
    source = Path(__file__).with_name("runtime_library.c").read_text()
    runtime = c_compiler.build_object("runtime_library", source, ("-O1", "-fPIC", "-fno-builtin"))
    path = c_compiler.link_shared_library(
        stem.with_suffix(".so"),
        (stem.with_suffix(".o"), runtime, tvm_ffi.libinfo.find_libtvm_ffi()),
        # These definitions take precedence inside the library even if another runtime is loaded globally.
        # A function that the host code needs and that is undefined fails at link time.
        ("-Wl,-Bsymbolic", "-Wl,-z,defs", "-lm"),
    )
    stem.with_suffix(".o").unlink()
    library = ctypes.CDLL(str(path))
    path.unlink()
    library.cute_fa4_emulator_connect(ctypes.byref(_callback_table()), ctypes.c_long(number))
    # Not by getattr, which refuses names that begin and end with two underscores.
    return ctypes.cast(library[symbol], ctypes.c_void_p).value, library, number


def _callback_table():
    global _callbacks
    if _callbacks is None:
        _callbacks = _Callbacks(*(kind(getattr(driver_api, name)) for name, kind in _PROTOTYPES))
    return _callbacks
