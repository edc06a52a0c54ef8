"""A kernel file as a program: `run FILE.ptx` and `run FILE.cu` with the launch and its arguments as options.

    run scale.ptx --grid 2 --block 64 --argument f32:100:zeros --argument f32:100:random --argument f32:3

    --argument        the kernel gets
    f32:3             a number of that type
    f32:4x8:random    the address of 4 x 8 numbers: random (normal), zeros, ones, count (0, 1, 2, ...), nan
    FILE.npy          the address of an array from the file
    null              the address 0

Types: f16 bf16 f32 f64, u8 to u64, s8 to s64. After the launch the arrays that it changed are printed. This module
does not import torch.
"""

import argparse
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from cute_fa4.emulator.host import device, ptx_files

SUFFIXES = (".ptx", ".cu")
_TYPES = {f"{letter}{bits}": np.dtype(f"{kind}{bits // 8}")
          for letter, kind in (("u", "u"), ("s", "i")) for bits in (8, 16, 32, 64)}  # fmt: skip
_TYPES |= {"f16": np.dtype("f2"), "f32": np.dtype("f4"), "f64": np.dtype("f8")}
_TYPES["bf16"] = np.dtype("u2")  # bits; NumPy has no such type
_FILLS = ("random", "zeros", "ones", "count", "nan")
NVCC_REMEDY = (
    "install a CUDA toolkit of version 12.8 or newer and put nvcc on the PATH, or compile the file where one is "
    "(nvcc --ptx -arch=sm_100a FILE.cu -o FILE.ptx) and run FILE.ptx"
)


class KernelFileError(ValueError):
    """The file or its launch is not complete; the message says what to add."""


class Argument:
    """One --argument: the text, the value for the kernel, and for an array its type and what it was before."""

    def __init__(self, text, generator):
        self.text, self.kind, self.before = text, None, None
        if text == "null":
            self.value = None
        elif text.endswith(".npy"):
            self._array(np.load(text), None)
        else:
            kind, *rest = text.split(":")
            if kind not in _TYPES or len(rest) not in (1, 2):
                raise KernelFileError(
                    f"--argument {text}: accepted are TYPE:NUMBER, TYPE:SIZES:FILL, FILE.npy and null; types: "
                    f"{', '.join(_TYPES)}"
                )
            if len(rest) == 1:
                self.value = _number(text, kind, rest[0])
            else:
                self._array(_filled(text, kind, *rest, generator), kind)

    def _array(self, array, kind):
        _, memory = device.allocated(array.nbytes, self.text)
        self.value = memory.view(array.dtype).reshape(array.shape)
        self.value[...] = array
        self.kind, self.before = kind, array

    @property
    def changed(self):
        """Whether the kernel wrote other bytes to the array."""
        return self.before is not None and self.value.tobytes() != self.before.tobytes()

    def shown(self):
        """The array, shortened, in numbers."""
        values = self.value
        if self.kind == "bf16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        return np.array2string(values, threshold=64, edgeitems=4, max_line_width=110)


def _number(text, kind, word):
    try:
        if kind[0] in "us":
            return int(word, 0)
        value = float(word)
    except ValueError:
        raise KernelFileError(f"--argument {text}: {word} is not a number of type {kind}") from None
    if kind == "bf16":
        return _bf16(np.array([value])).tobytes()
    return _TYPES[kind].type(value).tobytes()


def _filled(text, kind, sizes, fill, generator):
    if not re.fullmatch(r"\d+(x\d+)*", sizes) or fill not in _FILLS:
        raise KernelFileError(
            f"--argument {text}: accepted are sizes such as 100 or 4x8, and the fills {', '.join(_FILLS)}"
        )
    shape = tuple(int(n) for n in sizes.split("x"))
    if fill == "nan" and kind[0] in "us":
        raise KernelFileError(f"--argument {text}: {kind} has no NaN")
    if fill == "random":
        floats = generator.standard_normal(shape)
        values = floats if kind[0] not in "us" else generator.integers(0, 100, shape)
    elif fill == "count":
        values = np.arange(np.prod(shape, dtype=np.int64)).reshape(shape)
    else:
        values = np.full(shape, {"zeros": 0, "ones": 1, "nan": np.nan}[fill])
    return _bf16(values) if kind == "bf16" else values.astype(_TYPES[kind])


def _bf16(values):
    """Bits of the nearest bf16, ties to even."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    nearest = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, nearest).astype(np.uint16)


def parsed(path, words):
    """The options after the file."""
    parser = argparse.ArgumentParser(
        prog=f"python -m cute_fa4.emulator run {path}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=__doc__,
    )
    parser.add_argument("--entry", help="name of the kernel; default: the only one")
    parser.add_argument("--grid", type=_sizes, default=(1,), help="such as 8 or 8,4,1; default: 1")
    parser.add_argument("--block", type=_sizes, help="default: .reqntid of the kernel")
    parser.add_argument("--cluster", type=_sizes, help="default: .reqnctapercluster, else 1")
    parser.add_argument("--shared", type=int, default=0, help="dynamic bytes of a CTA; default: 0")
    parser.add_argument(
        "--argument", action="append", default=[], help="one for each parameter, in order"
    )
    parser.add_argument("--seed-of-numbers", type=int, default=0, help="of random; default: 0")
    parser.add_argument("--save", metavar="FILE.npz", help="write the arrays after the launch")
    return parser.parse_args(words)


def _sizes(text):
    return tuple(int(n) for n in text.split(","))


def ptx_of(path):
    """The PTX text of a file; a .cu file is compiled for sm_100a. KernelFileError without nvcc, or for its errors."""
    path = Path(path)
    if path.suffix == ".ptx":
        return path.read_text()
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise KernelFileError(f"{path}: nvcc is not on the PATH. {NVCC_REMEDY}")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "kernel.ptx"
        command = [nvcc, "--ptx", "-arch=sm_100a", "-lineinfo", str(path), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise KernelFileError(f"{' '.join(command)}\n{(done.stderr or done.stdout).strip()}")
        return made.read_text()


def entry_of(text, wanted):
    """The entry that a name means: itself, or the only one whose C++ name it is."""
    from cute_fa4.emulator.ptx.parser import parse

    names = list(parse(text).kernels)
    if wanted is None or wanted in names:
        return wanted
    mangled = f"{len(wanted)}{wanted}"
    found = [name for name in names if name.startswith("_Z") and mangled in name]
    return found[0] if len(found) == 1 else wanted


def run(path, words):
    """Launch a kernel of a .ptx or .cu file once, and print what it changed.

    Raises KernelFileError for options that do not fit the kernel, EmulatorError for errors of the kernel.
    """
    options = parsed(path, words)
    text = ptx_of(path)
    generator = np.random.default_rng(options.seed_of_numbers)
    try:
        kernel = ptx_files.load(text, entry_of(text, options.entry))
    except ValueError as error:
        raise KernelFileError(str(error).replace("entry None", "no --entry")) from error
    arguments = [Argument(each, generator) for each in options.argument]
    if len(arguments) != len(kernel.parameters):
        needs = ", ".join(f"{p.name} ({p.kind}, {p.nbytes} bytes)" for p in kernel.parameters)
        raise KernelFileError(
            f"{kernel.entry} takes {len(kernel.parameters)} arguments, {len(arguments)} were given with --argument; "
            f"parameters: {needs or 'none'}"
        )
    block = options.block or kernel.directives.get(".reqntid")
    if block is None:
        raise KernelFileError(f"{kernel.entry} has no .reqntid: name the threads with --block")
    try:
        kernel.launch(
            *(each.value for each in arguments),
            grid=options.grid, block=block, cluster=options.cluster, shared=options.shared,
        )  # fmt: skip
    except (TypeError, ValueError) as error:
        raise KernelFileError(str(error)) from error
    print(f"{kernel.entry}: grid {options.grid}, block {tuple(block)}")
    for parameter, argument in zip(kernel.parameters, arguments, strict=True):
        if argument.before is not None:
            said = f"written:\n{argument.shown()}" if argument.changed else "not changed"
            print(f"{parameter.name}  {argument.text}  {said}")
    if options.save:
        arrays = {
            p.name: a.value
            for p, a in zip(kernel.parameters, arguments, strict=True)
            if a.before is not None
        }
        np.savez(options.save, **arrays)
        print(f"{options.save}: written")
