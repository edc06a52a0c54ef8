"""Scheduling fields of SASS instructions: what ptxas tells the issue logic, read from the cubin.

An instruction is 128 bits; the compiler schedules it in bits 105 to 125:

    bit    105-108  109    110-112  113-115  116-121     122-125
           stall    yield  write    read     wait mask   operand reuse
                           scoreboard (7: none)

    stall      cycles before the next instruction of the same warp may issue
    yield      0: the scheduler may prefer another warp now
    write      scoreboard that is busy until the result is written (variable latency)
    read       scoreboard that is busy until the operands are read
    wait mask  scoreboards that must be free before this instruction issues

Jia et al., "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking" (2018), 2.1: the
fields of Volta, which sm_90 and sm_100 kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cute_fa4.emulator.model import nvdisasm
from cute_fa4.emulator.model.program import Function, parse

INSTRUCTION_BYTES = 16
NO_SCOREBOARD = 7
SCOREBOARDS = 6
_FIRST_BIT = 105


@dataclass(frozen=True)
class ControlCode:
    """Bits 105 to 125 of one instruction; write and read are None where no scoreboard is set."""

    stall: int
    may_yield: bool
    write: int | None
    read: int | None
    wait_mask: int
    reuse: int

    @property
    def waits(self) -> tuple[int, ...]:
        """Scoreboards that must be free before the instruction issues."""
        return tuple(i for i in range(SCOREBOARDS) if self.wait_mask >> i & 1)


def decode(word: int) -> ControlCode:
    """The scheduling fields of a 128-bit instruction word. ValueError outside of 128 bits."""
    if not 0 <= word < 1 << 128:
        raise ValueError(f"instruction word {word:#x}; accepted: 128 bits")
    bits = word >> _FIRST_BIT
    write, read = bits >> 5 & 7, bits >> 8 & 7
    return ControlCode(
        stall=bits & 15,
        may_yield=not bits >> 4 & 1,
        write=None if write == NO_SCOREBOARD else write,
        read=None if read == NO_SCOREBOARD else read,
        wait_mask=bits >> 11 & 63,
        reuse=bits >> 17 & 15,
    )


def encode(code: ControlCode) -> int:
    """The inverse of decode: a word with everything else zero, for tests."""
    write = NO_SCOREBOARD if code.write is None else code.write
    read = NO_SCOREBOARD if code.read is None else code.read
    bits = code.stall | (not code.may_yield) << 4 | write << 5 | read << 8
    return (bits | code.wait_mask << 11 | code.reuse << 17) << _FIRST_BIT


@dataclass(frozen=True)
class MachineCode:
    """A kernel: its control-flow graph, and the scheduling fields by instruction address."""

    function: Function
    codes: dict[int, ControlCode]


def read(cubin: bytes, listing: str, name: str | None = None) -> MachineCode:
    """A function of a cubin, by its name, or the largest. listing: nvdisasm -c of the same cubin.

    ValueError when listing and cubin do not belong together.
    """
    functions = [f for f in parse(listing) if name is None or f.name == name]
    if not functions:
        raise ValueError(f"the listing has no function {name}")
    function = max(functions, key=lambda f: sum(len(b.instructions) for b in f.blocks))
    sections = [s for s in nvdisasm._sections(cubin) if s.name == f".text.{function.name}"]
    if len(sections) != 1:
        raise ValueError(f"{len(sections)} sections .text.{function.name} in the cubin, expected 1")
    text = cubin[sections[0].offset :][: sections[0].size]
    instructions = list(function.instructions)
    last = instructions[-1].address + INSTRUCTION_BYTES
    if last > len(text):
        raise ValueError(f"the listing has code up to {last:#x}, the cubin {len(text):#x} bytes")
    codes = {
        ins.address: decode(int.from_bytes(text[ins.address :][:INSTRUCTION_BYTES], "little"))
        for ins in instructions
    }
    return MachineCode(function, codes)


def read_file(path: Path) -> MachineCode:
    """The largest function of a cubin file; NvdisasmError where nvdisasm is missing."""
    return read(path.read_bytes(), nvdisasm.disassemble(path))
