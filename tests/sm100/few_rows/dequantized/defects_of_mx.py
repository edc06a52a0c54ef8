"""Defects in the scales of blocks of an 8-bit cache (MXFP8), planted in the kernel's PTX; one line is one mistake.

The subject: that of defects_of_blocks.py with e4m3 numbers, whose blocks of 32 columns have powers of two. One block of
K has a scale that fp16 does not hold, so that the scores of a key are NaN, in a second sequence.
"""

import torch

from cute_fa4 import flash_attn_func
from tests.emulator.mutations import attention_places
from tests.emulator.mutations.attention_call import executes
from tests.emulator.mutations.edits import lines, replace
from tests.emulator.mutations.mutant import WRONG_NUMBERS, Mutant, Subject
from tests.sm100.few_rows.dequantized import defects_of_blocks

NAME = "d128_mx"
CONFIG = defects_of_blocks.CONFIG.with_(kv_dtype="mxe4m3")
attention_places.KNOWN[CONFIG.name] = CONFIG
TOO_LARGE = 135  # 2^8


def subject(level) -> Subject:
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(2, 1, 8, 128, generator=generator).bfloat16()
    k, v = torch.randn(2, 2, 300, 1, 128, generator=generator).to(torch.float8_e4m3fn)
    scales = torch.randint(122, 129, (2, 2, 300, 1, 4), generator=generator).byte()
    scales[0, 1, 290, 0, 0] = TOO_LARGE
    of_k, of_v = scales.view(torch.float8_e8m0fnu)

    def call(out):
        return flash_attn_func(
            q, k, v, k_block_scale=of_k, v_block_scale=of_v, return_lse=True, out=out
        )

    return Subject(NAME, executes(call, q, level))


PRODUCT = lines("kernel", r"mul\.rn\.f16x2 (\S+), (\S+), (\S+);")
BYTE = lines("kernel", r"bfe\.u32 byte, (\S+), 8, 8;")
POWER = lines("kernel", r"shl\.b32 bits, byte, 23;")
LARGEST = lines("kernel", r"setp\.gt\.u32 above, byte, 134;")


def mutants() -> tuple:
    def planted(name, edit) -> Mutant:
        return Mutant(name, NAME, edit, (WRONG_NUMBERS,))

    return (
        planted("two numbers of K have no power", replace(PRODUCT.first, r"mov.b32 \1, \2;")),
        planted("two numbers of V have no power", replace(PRODUCT.last, r"mov.b32 \1, \2;")),
        planted("a block of K has the power of the one before", replace(BYTE.first, r"bfe.u32 byte, \1, 0, 8;")),
        planted("a block of V has the power of the one before", replace(BYTE.last, r"bfe.u32 byte, \1, 0, 8;")),
        planted("a power of K is the square", replace(POWER.first, "shl.b32 bits, byte, 24;")),
        planted("a power of V is the square", replace(POWER.last, "shl.b32 bits, byte, 24;")),
        planted("a power of K that fp16 lacks is taken", replace(LARGEST.first, "setp.gt.u32 above, byte, 255;")),
    )  # fmt: skip
