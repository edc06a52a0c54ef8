"""Defects in the scales of blocks of a 4-bit cache (NVFP4), planted in the kernel's PTX; one line is one mistake.

The barriers are those of defects.py; these are in the arithmetic and in the reads of scales. The subject: two sequences
of one query, eight heads of bf16 on one, 300 keys: three key tiles each, the last with 44 keys. Scales differ from
block to block.
"""

import torch

from cute_fa4 import flash_attn_func
from cute_fa4.sm100.choose.choose_config import choose_config
from tests.emulator.mutations import attention_places
from tests.emulator.mutations.attention_call import executes
from tests.emulator.mutations.edits import lines, replace
from tests.emulator.mutations.mutant import WRONG_NUMBERS, Mutant, Subject

NAME = "d128_blocks"
CONFIG = choose_config(
    qkv_dtype="bf16", kv_dtype="e2m1", head_dim=128, group=8, pack_gqa=True, write_lse=True, rows=8
)
attention_places.KNOWN[CONFIG.name] = CONFIG


def subject(level) -> Subject:
    return subject_of(NAME, level)


def subject_of(name: str, level, **options) -> Subject:
    """options: further arguments of the call, as those that say how its scales lie."""
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(2, 1, 8, 128, generator=generator).bfloat16()
    k, v = torch.randint(0, 256, (2, 2, 300, 1, 64), generator=generator).byte()
    scales = torch.randint(0x20, 0x38, (2, 2, 300, 1, 8), generator=generator).byte()
    of_k, of_v = scales.view(torch.float8_e4m3fn)

    def call(out):
        return flash_attn_func(
            q, k, v, k_block_scale=of_k, v_block_scale=of_v, return_lse=True, out=out, **options
        )

    return Subject(name, executes(call, q, level))


PRODUCT = lines("kernel", r"mul\.rn\.f16x2 (\S+), (\S+), (\S+);")
CONVERSION = lines("kernel", r"cvt\.rn\.f16x2\.e2m1x2 (\S+), byte0;")
OF_TWO = lines("kernel", r"mov\.b32 (\S+), \{high, high\};")
WORD = lines(
    "kernel", r"@wanted ld\.global\.b32 (\S+), \[(%rd\d+)\];"
)  # the first of K, the last of V


def mutants() -> tuple:
    def planted(name, edit) -> Mutant:
        return Mutant(name, NAME, edit, (WRONG_NUMBERS,))

    return (
        planted("two numbers of K are not scaled", replace(PRODUCT.first, r"mov.b32 \1, \2;")),
        planted("two numbers of V are not scaled", replace(PRODUCT.last, r"mov.b32 \1, \2;")),
        planted(
            "two numbers of K are those of the next byte",
            replace(CONVERSION.first, r"cvt.rn.f16x2.e2m1x2 \1, byte1;"),
        ),
        planted(
            "two numbers of V are those of the next byte",
            replace(CONVERSION.last, r"cvt.rn.f16x2.e2m1x2 \1, byte1;"),
        ),
        planted(
            "a block of K has the scale of the block before",
            replace(OF_TWO.first, r"mov.b32 \1, {low, low};"),
        ),
        planted(
            "a block of V has the scale of the block before",
            replace(OF_TWO.last, r"mov.b32 \1, {low, low};"),
        ),
        planted(
            "the first blocks of K have the scales of the last",
            replace(WORD.first, r"@wanted ld.global.b32 \1, [\2+4];"),
        ),
        planted(
            "the last blocks of V have the scales of the first, ahead",
            replace(WORD.last, r"@wanted ld.global.b32 \1, [\2-4];"),
        ),
    )
