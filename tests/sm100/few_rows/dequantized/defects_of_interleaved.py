"""Defects in the reads of interleaved scales of V (NVFP4), planted in the kernel's PTX; one line is one mistake.

The subject is that of defects_of_blocks.py with v_block_scale_layout="interleaved4". A thread reads a byte for each
block: those of a line are four tokens' of one block, then of the next.
"""

from tests.emulator.mutations import attention_places
from tests.emulator.mutations.edits import lines, replace
from tests.emulator.mutations.mutant import WRONG_NUMBERS, Mutant, Subject
from tests.sm100.few_rows.dequantized import defects_of_blocks

NAME = "d128_interleaved"
CONFIG = defects_of_blocks.CONFIG.with_(v_block_scale_layout="interleaved4")
attention_places.KNOWN[CONFIG.name] = CONFIG


def subject(level) -> Subject:
    return defects_of_blocks.subject_of(NAME, level, keys=812, v_block_scale_layout="interleaved4")


BYTE = lines("kernel", r"@wanted ld\.global\.u8 (\S+), \[(%rd\d+)\];")


def mutants() -> tuple:
    def planted(name, place, by) -> Mutant:
        return Mutant(name, NAME, replace(place, by), (WRONG_NUMBERS,))

    return (
        planted("the scale of V is that of the token after", BYTE.first, r"@wanted ld.global.u8 \1, [\2+1];"),
        planted("the scale of V is that of the block after", BYTE.first, r"@wanted ld.global.u8 \1, [\2+4];"),
        planted("another scale of V is that of the block before", BYTE.middle, r"@wanted ld.global.u8 \1, [\2-4];"),
    )  # fmt: skip
