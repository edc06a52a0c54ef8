"""A cubin's SASS text through NVIDIA's nvdisasm, and its registers and stack from the ELF itself.

nvdisasm needs no GPU and no driver. It is looked for in this order:

    $NVDISASM                       the path of the program
    nvidia-cuda-nvdisasm            a 5 MB package; it installs nvidia/cu<major>/bin/nvdisasm
    triton                          triton/backends/nvidia/bin/nvdisasm
    $PATH                           a CUDA toolkit, 12.8 or newer for sm_100
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REMEDY = "pip install nvidia-cuda-nvdisasm (5 MB), or set NVDISASM to the path of the program"


class NvdisasmError(RuntimeError):
    """nvdisasm is missing or refused the file; the message says how to go on."""


def find() -> Path:
    """The nvdisasm program; NvdisasmError with the remedy when there is none."""
    for path in installed("nvdisasm", ("nvdisasm",), NvdisasmError, REMEDY):
        return path
    raise NvdisasmError(f"nvdisasm not found in $NVDISASM, site-packages and $PATH. {REMEDY}")


def installed(
    name: str, in_triton: tuple[str, ...], error: type[Exception], remedy: str
) -> Iterator[Path]:
    """Every program of NVIDIA with this name, in the order that the head of this module says.

    in_triton  its names there. error, remedy: for an environment variable that names no file
    """
    variable = name.upper()
    if variable in os.environ:
        named = Path(os.environ[variable])
        if not named.is_file():
            raise error(f"{variable}={named} is not a file. {remedy}")
        yield named
    for folder in package_folders("nvidia"):
        yield from sorted(folder.glob(f"cu*/bin/{name}"), reverse=True)
    for folder in package_folders("triton"):
        programs = (folder / "backends" / "nvidia" / "bin" / each for each in in_triton)
        yield from (program for program in programs if program.is_file())
    on_path = shutil.which(name)
    if on_path:
        yield Path(on_path)


def package_folders(name: str) -> list[Path]:
    """Where a package lies, without importing it; [] where it is not installed."""
    spec = importlib.util.find_spec(name)
    return [Path(p) for p in spec.submodule_search_locations or ()] if spec else []


def disassemble(cubin: Path) -> str:
    """The SASS of every function in the cubin, with labels for branch targets (nvdisasm -c)."""
    program = find()
    result = subprocess.run([program, "-c", cubin], capture_output=True, text=True)
    if result.returncode:
        raise NvdisasmError(
            f"{program} refused {cubin}: {result.stderr.strip()}. Accepted: an sm_100 or sm_103 "
            f"cubin and nvdisasm 12.8 or newer"
        )
    return result.stdout


@dataclass(frozen=True)
class Resources:
    """Launch resources of the cubin's largest function.

    registers    a thread at launch, before setmaxnreg
    stack_bytes  local memory a thread: spills and indexed arrays; 0 is what a kernel should have
    """

    registers: int
    stack_bytes: int


# Attribute numbers in the .nv.info section; value: symbol index, number.
_FRAME_SIZE = 0x11
_REGISTER_COUNT = 0x2F
_FORMAT_SIZED_VALUE = 4


def resources(cubin: bytes, name: str | None = None) -> Resources:
    """Registers and stack frame of a function of a cubin, by name or the largest, read from its .nv.info section."""
    if cubin[:4] != b"\x7fELF":
        raise NvdisasmError(f"not a cubin: begins with {cubin[:4]!r}, an ELF file with b'\\x7fELF'")
    sections = _sections(cubin)
    # sh_info of a .text section is its function's symbol: (low 24 bits; the rest holds registers
    # in older formats).
    wanted = ".text." if name is None else f".text.{name}"
    text = max((s for s in sections if s.name.startswith(wanted)), key=lambda s: s.size)
    kernel = text.info & 0xFFFFFF
    found = {_FRAME_SIZE: 0, _REGISTER_COUNT: 0}
    for section in sections:
        if section.name == ".nv.info":
            for attribute, value in _attributes(cubin[section.offset :][: section.size]):
                if attribute in found and len(value) == 8:
                    symbol, number = struct.unpack("<II", value)
                    if symbol == kernel:
                        found[attribute] = number
    return Resources(registers=found[_REGISTER_COUNT], stack_bytes=found[_FRAME_SIZE])


@dataclass(frozen=True)
class _Section:
    name: str
    offset: int
    size: int
    info: int


def _sections(elf: bytes) -> list[_Section]:
    """Section headers of a 64-bit little-endian ELF file (System V ABI, "Sections")."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    entry_size, count, names_index = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", elf, table + i * entry_size) for i in range(count)]
    names = headers[names_index][4]

    def name(offset: int) -> str:
        return elf[names + offset : elf.index(b"\0", names + offset)].decode()

    return [_Section(name(h[0]), offset=h[4], size=h[5], info=h[7]) for h in headers]


def _attributes(info: bytes) -> Iterator[tuple[int, bytes]]:
    """(attribute, value) of .nv.info; a record is format, attribute, 16 bits, [value of so many]."""
    at = 0
    while at + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == _FORMAT_SIZED_VALUE:
            yield attribute, info[at : at + size]
            at += size
