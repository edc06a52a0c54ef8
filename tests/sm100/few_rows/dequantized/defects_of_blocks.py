"""Defects in the scales of blocks of a 4-bit cache (NVFP4), planted in the kernel's PTX; one line is one mistake.

Barriers of K, V and Q are those of defects.py; these are in the arithmetic, and in the ring of scales. The subject: two
sequences of one query, eight heads of bf16 on one, 810 keys: seven key tiles each, the last with 42 keys, so that the
ring of four goes round, and four keys of a lane are not all there. Scales differ from block to block.
"""

import torch

from cute_fa4 import flash_attn_func
from cute_fa4.sm100.choose.choose_config import choose_config
from tests.emulator.mutations import attention_places
from tests.emulator.mutations.attention_call import executes
from tests.emulator.mutations.attention_places import AN_ARRIVAL, ARRIVE, on, wait
from tests.emulator.mutations.edits import (
    ALWAYS_TRUE,
    FLIPPED_PARITY,
    delete,
    lines,
    move,
    replace,
)
from tests.emulator.mutations.mutant import (
    ASYNCHRONY,
    COUNTS,
    HANG,
    WRONG_NUMBERS,
    Mutant,
    Subject,
)

NAME = "d128_blocks"
CONFIG = choose_config(
    qkv_dtype="bf16", kv_dtype="e2m1", head_dim=128, group=8, pack_gqa=True, write_lse=True, rows=8
)
attention_places.KNOWN[CONFIG.name] = CONFIG


def subject(level) -> Subject:
    return subject_of(NAME, level)


def subject_of(name: str, level, keys: int = 810, **options) -> Subject:
    """options: further arguments of the call, as those that say how its scales lie."""
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(2, 1, 8, 128, generator=generator).bfloat16()
    k, v = torch.randint(0, 256, (2, 2, keys, 1, 64), generator=generator).byte()
    scales = torch.randint(0x20, 0x38, (2, 2, keys, 1, 8), generator=generator).byte()
    of_k, of_v = scales.view(torch.float8_e4m3fn)

    def call(out):
        return flash_attn_func(
            q, k, v, k_block_scale=of_k, v_block_scale=of_v, return_lse=True, out=out, **options
        )

    return Subject(name, executes(call, q, level))


PRODUCT = lines("kernel", r"mul\.rn\.f16x2 (\S+), (\S+), (\S+);")
CONVERSION = lines("kernel", r"cvt\.rn\.f16x2\.e2m1x2 (\S+), byte0;")
OF_TWO = lines("kernel", r"mov\.b32 (\S+), \{high, high\};")
EXCHANGED = lines("kernel", r"lop3\.b32 (\S+), (\S+), (\S+), 0xf0f0f0f, 0xe4;")
HALVES = lines("kernel", r"prmt\.b32 (\S+), (\S+), (\S+), 0x5410;")
SELECTED = lines("kernel", r"prmt\.b32 (\S+), (\S+), (\S+), 0x7362;")
PIECE = lines("kernel", r"st\.shared\.v4\.b32 \[(%r\d+)\], \{.*\};")
WORD = lines("kernel", r"ld\.shared\.b32 (\S+), \[(%r\d+)\];")
LOADED = lines("kernel", r"@wanted ld\.global\.b32 (\S+), \[(%rd\d+)\];")  # of four keys: K, then V


def of_ring() -> tuple:
    """In the ring of scales: waits, arrivals."""
    full, empty = wait("kernel", "scales_full").first, wait("kernel", "scales_empty").first
    ready, read = (
        on(lines("kernel", ARRIVE), name, f"arrival at {name}").first
        for name in ("scales_full", "scales_empty")
    )
    early = (*ASYNCHRONY, *COUNTS)
    any_of_them = (*early, *HANG)

    def planted(name, edit, meant) -> Mutant:
        return Mutant(name, NAME, edit, meant)

    return (
        planted("dequantize does not wait for scales", replace(full, ALWAYS_TRUE), early),
        planted("scales does not wait for an entry", replace(empty, ALWAYS_TRUE), early),
        planted("the other parity of scales is waited for", replace(full, FLIPPED_PARITY), any_of_them),
        planted("scales_full is not raised", delete(ready), HANG),
        planted("scales_empty is not raised", delete(read), HANG),
        planted(
            "scales_full is raised before scales are stored",
            move(ready, before=PIECE.after(empty).first, by=AN_ARRIVAL),
            early,
        ),
        planted(
            "scales_empty is raised before scales are read",
            move(read, before=WORD.after(full).first, by=AN_ARRIVAL),
            early,
        ),
    )  # fmt: skip


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
            "two keys of V are exchanged",
            replace(EXCHANGED.first, r"lop3.b32 \1, \3, \2, 0xf0f0f0f, 0xe4;"),
        ),
        planted(
            "numbers of V stay with their key",
            replace(EXCHANGED.last, r"lop3.b32 \1, \2, \2, 0xf0f0f0f, 0xe4;"),
        ),
        planted(
            "scales of two keys of V are those of the other two",
            replace(HALVES.first, r"prmt.b32 \1, \3, \2, 0x5410;"),
        ),
        planted(
            "two keys of V have the scales of another block",
            replace(SELECTED.first, r"prmt.b32 \1, \2, \3, 0x5140;"),
        ),
        planted(
            "the first blocks of K have the scales of the last",
            replace(LOADED.first, r"@wanted ld.global.b32 \1, [\2+4];"),
        ),
        planted(
            "the last blocks of V of a key have the scales of the first",
            replace(LOADED.last, r"@wanted ld.global.b32 \1, [\2-4];"),
        ),
        *of_ring(),
    )
