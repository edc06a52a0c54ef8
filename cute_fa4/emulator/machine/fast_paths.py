"""The common cases of the most frequent operations, in C (fast_paths.c), compiled at first use like lanes.py.

    uniform             the one value of a register            touch_*                 order checks of granules
    shared_offsets      lanes -> offsets, bounds, written      multiply                tcgen05.mma of 128 rows
    load_registers, store_registers, copy_rows                 load_tensor, store_tensor

A function handles a case completely or returns without effect. For unusual cases (a fault, a race, lanes that
disagree) its caller executes the Python code, which also words all reports. So each instruction has one meaning, in
Python, and tests check that both paths give the same bits (tests/emulator/test_fast_paths.py).

    if not (fast.load_tensor(...)): values = tmem.read(...)
"""

import ctypes
from ctypes import c_double, c_int, c_int64, c_uint32, c_void_p, py_object
from pathlib import Path

import numpy as np

from cute_fa4.system.c_compiler import build_shared_library

FLAGS = (
    "-O3",
    "-fPIC",
    "-march=native",
    # Products of narrow elements are exact in float64, so fusing them with the sum changes nothing.
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fwrapv",
    "-fno-strict-aliasing",
)

HEAD = object.__basicsize__
"""Size of the Python object header, after which NumPy's C interface stores the address of the data."""

FORMATS = {"f16": 0, "bf16": 1, "tf32": 2, "e4m3": 3, "e5m2": 3}
"""Element formats of products, as in the C file; 3: by a table."""


class Operand(ctypes.Structure):
    """A or B of a product: chunks of shared memory, or a column of tensor memory."""

    _fields_ = [(name, c_void_p) for name in ("bytes", "written", "chunks", "table")] + [
        (name, c_int64) for name in ("format", "bytes_each", "mn_major", "rows", "column")
    ]


class ShadowState(ctypes.Structure):
    """Addresses of the arrays of a checks.shadow.Shadow."""

    _fields_ = [(name, c_void_p) for name in ("writer", "latest", "readers")] + [
        ("actors", c_int64)
    ]


# write, actor, known of writers, of readers, actors of accesses, number
_ACCESS = (c_int, c_int64, py_object, c_int64, py_object, c_int64, py_object, c_int)
_SIGNATURES = {
    "address_of": (c_int64, py_object),
    "uniform": (c_int64, py_object, c_int64, c_uint32, c_uint32),
    "copy_rows": (None, py_object, py_object, c_int64, py_object),
    "shared_offsets": (
        c_int64, py_object, c_int64, c_uint32, c_uint32, c_uint32, c_int64, c_uint32, py_object, c_uint32, py_object,
    ),
    "load_registers": (
        None, py_object, c_uint32, py_object, py_object, py_object, c_int64, c_uint32, c_uint32,
    ),
    "store_registers": (
        None, py_object, c_uint32, py_object, py_object, py_object, py_object, c_int64, c_uint32,
    ),
    "load_tensor": (c_int, *(py_object,) * 5, *(c_int64,) * 3),
    "store_tensor": (c_int, *(py_object,) * 4, *(c_int64,) * 3),
    "touch_index": (c_int, c_void_p, py_object, c_int64, *_ACCESS),
    "touch_block": (c_int, c_void_p, *(c_int64,) * 4, *_ACCESS),
    "touch_items": (c_int, c_void_p, c_void_p, py_object, py_object, c_int64, c_int64, *_ACCESS),
    "multiply": (
        c_int, c_void_p, c_void_p, c_int64, py_object, py_object, py_object, *(c_int64,) * 3, c_double, c_int64,
    ),
}  # fmt: skip


class _Library:
    """The functions of fast_paths.c as attributes; the first use of one compiles the file."""

    def __getattr__(self, name):
        if name not in _SIGNATURES:
            raise AttributeError(name)
        vars(self).update(_load())
        return vars(self)[name]


def _load():
    """name -> function."""
    library = ctypes.PyDLL(str(build_shared_library("fast_paths", c_source(), FLAGS)))
    functions = {}
    for name, (result, *arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
        functions[name] = function
    probe = np.arange(3)
    if functions["address_of"](probe) != probe.ctypes.data:
        raise RuntimeError(
            f"numpy {np.__version__} keeps the address of an array's data somewhere else than at byte {HEAD}; the "
            "emulator was written for numpy 2"
        )
    return functions


def c_source():
    """The whole C file."""
    here = Path(__file__).parent
    mode = (here / "float_mode.h").read_text()
    text = (here / "fast_paths.c").read_text()
    return f"#define HEAD {HEAD}\n" + text.replace("@FLOAT_MODE@", mode)


fast = _Library()
