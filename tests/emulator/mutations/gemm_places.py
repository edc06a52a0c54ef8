"""A defect of a stranger's GEMM (tests/emulator/three_stage_gemm.py), places in its PTX, edits that several share."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.emulator.mutations.edits import PARITY_0, WAIT, lines, replace

A_NOTE = "a note"


@dataclass(frozen=True)
class Defect:
    """error: class of the report, A_NOTE, or WRONG_NUMBERS if only the comparison with float64 can show it."""

    name: str
    edit: Callable[[str], str]
    error: str
    says: tuple = ()
    level: str = "hardware"


def at(pattern):
    return lines("kernel", pattern)


WAITS = at(WAIT).named("empty", "drained", "full", "done")
COMMITS = at(r"tcgen05\.commit\S*\s+(\[\S+\]);").named("empty", "done")
FENCES = at(r"tcgen05\.fence\S*;").named("after drained", "after done", "before drained")
READ = at(r"cp\.async\.bulk\.wait_group\.read\s+0;").named("before reuse", "at the end")
INITS = at(r"mbarrier\.init\S*\s+(\[\S+\]), (%r\d+);").named(
    "full[0]", "empty[0]", "full[1]", "empty[1]", "full[2]", "empty[2]", "done", "drained"
)
ARRIVAL = at(r"mbarrier\.arrive\.shared\.b64 (\S+), (\[\S+\]), (%r\d+);")
EXPECT = at(r"mbarrier\.arrive\.expect_tx\S* (%rd\d+), (\[\S+\]), (%r\d+);")
NBYTES = at(r"mov\.b32 \s*(%r\d+), 24576;")
LOADS = at(
    r"(cp\.async\.bulk\.tensor\.2d\.shared::cta\.global\S*) \[(%r\d+)\+(\d+)\], "
    r"\[(%rd\d+), \{(%r\d+), (%r\d+)\}\], \[(%r\d+)\]"
).named("A", "B")
STORE = at(r"(cp\.async\.bulk\.tensor\.2d\.global\S*) \[(%rd\d+), \{(%r\d+), (%r\d+)\}\]")
SYNCS = at(r"bar\.sync\s+1, 128;").named("before reuse", "written")
A_STAGE, B_STAGE = (
    at(rf"shl\.b32 \s*(%r\d+), (%r\d+), {bits};").after(WAITS["full"]) for bits in (10, 9)
)
# The second step of A goes 32 bytes along the row, two units of a descriptor.
A_STEP = at(r"add\.s32 \s*(%r\d+), (%r\d+), 2;").after(WAITS["full"]).of(2).number(1)
INSTRUCTION = at(r"or\.b32 \s*(%r\d+), (%r\d+), (%r\d+);").after(WAITS["full"]).first
ALLOC = at(r"tcgen05\.alloc\S*\s+(\[\S+\]), (\S+);")
DEALLOC = at(r"tcgen05\.dealloc\S*\s+(%r\d+), (%r\d+);")
RELINQUISH = at(r"tcgen05\.relinquish\S*;")

PARITY_1 = PARITY_0.replace(" 0,", " 1,")
TWICE = r"\g<0> \g<0>"
CONSTANT_BITS = 0x4000404000010000
"""Of the descriptors of A and B: 128-byte swizzle (2 << 61), 8 rows are 1,024 bytes apart (64 << 32)."""


def count(name, arrivals):
    changed = rf"{{.reg .b32 n; mov.b32 n, {arrivals}; mbarrier.init.shared.b64 \1, n;}}"
    return replace(INITS[name], changed)


def descriptor(of, swizzle=2, stride=64):
    """The constant bits of the shared-memory descriptor of A or B."""
    bits = CONSTANT_BITS & ~(7 << 61 | 0x3FFF << 32) | swizzle << 61 | stride << 32
    words = at(rf"or\.b64 \s*(%rd\d+), (%rd\d+), {CONSTANT_BITS};").named("A", "B")
    return replace(words[of], rf"or.b64 \1, \2, {bits};")


def instruction(differs):
    """Other bits in the instruction descriptor."""
    return replace(INSTRUCTION, rf"\g<0> xor.b32 \1, \1, {differs};")
