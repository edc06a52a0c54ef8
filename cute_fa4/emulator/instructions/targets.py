"""Which architecture has which instructions: sm_100a (B200), sm_103a (B300), sm_110a (Thor), and their families.

    sm_100a    this architecture alone        sm_100f    it and later ones of its family, without what only "a" has

LIMITED lists the instructions that the emulator executes and that not all of these have, as ptxas 13.2 accepts them.
Programs for other targets are not checked.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from cute_fa4.emulator.ptx.errors import UnknownInstruction

ARCHITECTURES = "sm_100a", "sm_103a", "sm_110a"
FAMILIES = "sm_100f", "sm_103f", "sm_110f"


class Limited(NamedTuple):
    """what: the instruction or qualifier, as errors name it; targets: those that have it."""

    what: str
    pattern: re.Pattern[str]
    targets: tuple[str, ...]


LIMITED = (
    Limited(
        "tcgen05.ld.red",
        re.compile(r"tcgen05\.ld\.red\."),
        ("sm_103a", "sm_110a", "sm_103f", "sm_110f"),
    ),
    Limited(
        "tcgen05.mma with .kind::i8",
        re.compile(r"tcgen05\.mma\..*\.kind::i8\b"),
        ("sm_100a", "sm_110a"),
    ),
    Limited(
        "tcgen05.mma.sp with .kind::mxf4 or .kind::mxf4nvf4",
        re.compile(r"tcgen05\.mma\.sp\..*\.kind::mxf4(nvf4)?\b"),
        ARCHITECTURES,
    ),
    Limited(
        "tcgen05.mma with .scale_vec::1X, ::2X or ::4X (families have .block16 and .block32)",
        re.compile(r"tcgen05\.mma\..*\.scale_vec::"),
        ARCHITECTURES,
    ),
    Limited("tcgen05.shift", re.compile(r"tcgen05\.shift\."), ARCHITECTURES),
    Limited("cvt with .rs (stochastic rounding)", re.compile(r"cvt\.rs\b"), ("sm_100a", "sm_103a")),
    Limited(
        "redux of f32",
        re.compile(r"redux\.sync\..*\.f32$"),
        ("sm_100a", "sm_103a", "sm_100f", "sm_103f"),
    ),
)


@lru_cache(4096)
def lacking(opcode: str, target: str) -> Limited | None:
    """The row by which an architecture lacks a spelling; None: it has it, or the target is another one."""
    if target not in (*ARCHITECTURES, *FAMILIES):
        return None
    return next(
        (row for row in LIMITED if target not in row.targets and row.pattern.match(opcode)), None
    )


def check(instructions, target: str) -> None:
    """UnknownInstruction for the first instruction of a program that its .target does not have."""
    for ins in instructions:
        missing = lacking(ins.opcode, target)
        if missing is not None:
            raise UnknownInstruction(
                f"{ins.opcode}: {target} does not have {missing.what}; {', '.join(missing.targets)} do. Compile the "
                f"kernel for one of these, or without the instruction\n  PTX line {ins.line}: {ins.text}"
            )


def table(opcodes) -> str:
    """Markdown: how many of these spellings each row limits, and which architectures have them."""
    names = (*ARCHITECTURES, *FAMILIES)
    lines = [
        f"| instruction | spellings | {' | '.join(names)} |",
        "|---|---:|" + "---|" * len(names),
    ]
    rest = set(opcodes)
    for row in LIMITED:
        limited = {opcode for opcode in opcodes if row.pattern.match(opcode)}
        rest -= limited
        has = " | ".join("yes" if name in row.targets else "no" for name in names)
        lines.append(f"| {row.what} | {len(limited)} | {has} |")
    lines.append(
        f"| all others of [the chapters](emulator_coverage.md) | {len(rest):,} | {' | '.join(['yes'] * len(names))} |"
    )
    return "\n".join(lines)
