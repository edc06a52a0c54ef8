"""The cost of a kernel's loops in SASS instructions, the number that limits SM100 attention.

Softmax on SM100 is bound by instruction issue: two 128-row tiles share four schedulers, each of
which issues one instruction a cycle for one warp, while the tensor core needs no thread. So the
count per thread and 128 keys is the cost of softmax, and it can be read without a GPU.

    loop        found by                                             unit
    softmax     MUFU.EX2 and LDTM, innermost                         128 keys of one row
      masked      at least one select or guarded move for 4 keys
    MMA         UTC*MMA, innermost                                   one key tile, two query tiles
    correction  LDTM, FMUL2 or FMUL, STTM, no MUFU.EX2, no F2FP      one key tile, two query tiles

Innermost: contains no loop but barrier retries. Counted is the longest pass without retries
(program.py, Function.longest_pass), every instruction of it: a NOP costs its issue slot too.
Keys a pass: P is stored once and packed, so 32 / bits of P keys for a column of STTM.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import asdict, dataclass
from functools import cached_property

from cute_fa4.emulator.model.program import Function, Instruction, Loop

_COLUMNS = re.compile(r"\.x(\d+)")
_MMA = re.compile(r"UTC[A-Z]MMA")
# One MMA multiplies 32 bytes of depth (PTX ISA, tcgen05.mma, shapes of kind::f16 and kind::f8f6f4).
MMA_DEPTH_BYTES = 32


@dataclass(frozen=True)
class Shape:
    """Properties that a cubin does not contain: the tile of one pass of a loop.

    head_dim: depth of Q K^T and columns of O; block_n: keys a tile; bits: of Q, K, V and P.
    """

    head_dim: int = 128
    block_n: int = 128
    bits: int = 16

    @property
    def mmas_per_key_tile(self) -> int:
        """Q K^T and P V of two query tiles."""
        per_tile = -(-self.head_dim // self._mma_depth) + -(-self.block_n // self._mma_depth)
        return 2 * per_tile

    @property
    def _mma_depth(self) -> int:
        return MMA_DEPTH_BYTES * 8 // self.bits


@dataclass(frozen=True)
class LoopCost:
    """One loop. units: how many of its unit (table above) one pass does."""

    kind: str
    address: int
    instructions: int
    units: float
    opcodes: dict[str, int]

    @property
    def per_unit(self) -> float:
        return self.instructions / self.units


@dataclass(frozen=True)
class KernelCost:
    """All loops that were found, and accesses to local memory (spills) in the whole kernel."""

    loops: list[LoopCost]
    local_memory_instructions: int
    total_instructions: int

    def of(self, kind: str) -> LoopCost:
        """The dearest loop of a kind: each softmax warpgroup may have a copy, the slowest counts.

        Raises ValueError with the kinds that exist when there is none of that kind.
        """
        loops = [loop for loop in self.loops if loop.kind == kind]
        if not loops:
            kinds = sorted({loop.kind for loop in self.loops})
            raise ValueError(f"no {kind!r} loop in this kernel; found: {kinds}")
        return max(loops, key=lambda loop: loop.per_unit)

    @cached_property
    def kinds(self) -> list[str]:
        return list(dict.fromkeys(loop.kind for loop in self.loops))

    def as_dict(self) -> dict:
        return {
            "loops": [{**asdict(loop), "per_unit": loop.per_unit} for loop in self.loops],
            "local_memory_instructions": self.local_memory_instructions,
            "total_instructions": self.total_instructions,
        }


KINDS = ("softmax unmasked", "softmax masked", "mma", "correction")
UNITS = {
    "softmax unmasked": "128 keys",
    "softmax masked": "128 keys",
    "mma": "key tile",
    "correction": "key tile",
}


def kernel_cost(functions: list[Function], shape: Shape) -> KernelCost:
    """The cost of the function that contains MMAs; ValueError where none or several do."""
    kernels = [f for f in functions if any(_MMA.match(ins.name) for ins in f.instructions)]
    if len(kernels) != 1:
        raise ValueError(
            f"{len(kernels)} functions with UTC*MMA among {[f.name[:60] for f in functions]}; "
            f"accepted: exactly one kernel with tcgen05.mma"
        )
    (kernel,) = kernels
    loops = [cost for loop in kernel.innermost() if (cost := _loop_cost(kernel, loop, shape))]
    code = list(kernel.instructions)
    return KernelCost(
        sorted(loops, key=lambda loop: (KINDS.index(loop.kind), loop.address)),
        local_memory_instructions=sum(ins.name in ("LDL", "STL") for ins in code),
        total_instructions=len(code),
    )


def _loop_cost(kernel: Function, loop: Loop, shape: Shape) -> LoopCost | None:
    code = kernel.longest_pass(loop)
    kind, units = _kind_and_units(code, shape)
    if kind is None:
        return None
    address = kernel.blocks[loop.header].instructions[0].address
    opcodes = dict(Counter(ins.name for ins in code).most_common())
    return LoopCost(kind, address, len(code), units, opcodes)


def _kind_and_units(code: list[Instruction], shape: Shape) -> tuple[str | None, float]:
    names = Counter(ins.name for ins in code)
    mmas = sum(count for name, count in names.items() if _MMA.match(name))
    if mmas:
        return "mma", mmas / shape.mmas_per_key_tile
    exponentials = sum(ins.opcode.startswith("MUFU.EX2") for ins in code)
    stored = sum(_columns(ins) for ins in code if ins.name == "STTM")
    loaded = sum(_columns(ins) for ins in code if ins.name == "LDTM")
    if exponentials and loaded:
        keys = stored * (32 // shape.bits) or loaded
        return f"softmax {'masked' if _selects(code) * 4 >= keys else 'unmasked'}", keys / 128
    if loaded and stored and (names["FMUL2"] or names["FMUL"]) and not names["F2FP"]:
        return "correction", stored / (2 * shape.head_dim)
    return None, 0.0


def _columns(ins: Instruction) -> int:
    """Columns that a tensor-memory load or store moves: 16 of LDTM.x16; 1 without a suffix."""
    found = _COLUMNS.search(ins.opcode)
    return int(found[1]) if found else 1


def _selects(code: list[Instruction]) -> int:
    """Instructions that put one of two values into a register: what a mask is made of.

    FSEL and SEL choose by predicate; R2P turns mask bits into predicates; a guarded MOV overwrites
    a score. The unmasked loop has a handful (row max of a row without keys), a masked one for
    nearly every key.
    """
    return sum(
        ins.name in ("FSEL", "SEL", "R2P") or (ins.name == "MOV" and ins.guard is not None)
        for ins in code
    )
