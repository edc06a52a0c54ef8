"""No thread of any kernel has local memory: what ptxas spills, a loop over key tiles reads again for every tile.

A row of CASES is a row of which_kernel.RULES with what changes the code of its roles: pages of 16 keys, rows that are
gathered, scales of keys, separate RoPE columns, stream-K splits. Most are compiled in the sweep, 3 s each.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.sass.our_kernel import compile_artifacts
from cute_fa4 import masks, score_mods
from cute_fa4.emulator.model import nvdisasm, program
from cute_fa4.integrations.transformers_masks import SAME_DOCUMENT
from cute_fa4.sm100.backward.config import BackwardConfig
from cute_fa4.sm100.choose.choose_config import choose_config, split_configs
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.choose.which_kernel import RULES
from cute_fa4.sm100.latent.dequantized.schedule import STORED, STORED_IN_PAGES
from tests import cases
from tests.sm100.indexer.variants import VARIANTS as INDEXERS

BF16 = dict(qkv_dtype="bf16")
E4M3 = dict(qkv_dtype="e4m3", descales="qkv")
OF_TOKENS = dict(qkv_dtype="e4m3", descales="KV")
DEQUANTIZED = dict(qkv_dtype="bf16", kv_dtype="e4m3", descales="kv")
OF_BLOCKS = DEQUANTIZED | dict(kv_dtype="e2m1")
MIXED_SCALES = dict(v_block_scale_layout="interleaved4")
D128, D64 = dict(head_dim=128), dict(head_dim=64)
OF_192 = dict(head_dim=192, head_dim_v=128)
OF_64 = dict(head_dim=64, head_dim_v=128)
PACKED = dict(q_layout="packed", kv_layout="packed")
ROPE = OF_192 | PACKED | dict(rope_depth=64, rope_page_size=48)
MIXED = dict(qkv_dtype="e4m3", rope_dtype="bf16", descales="QKV")
SCALED = dict(qkv_dtype="bf16", rope_dtype="e4m3", scale_dtype="f32")
OF_BF16 = dict(rope_dtype="bf16")
SKIPPED = dict(skip_softmax=True, count_skipped=True)
CAP = dict(score_mod=score_mods.soft_cap(30.0))
FUNCTIONS = CAP | dict(sink=True, pack_gqa=True)
FEW = dict(rows=32, group=8, pack_gqa=True)
SHARED_HEADS = dict(pack_gqa=True, write_lse=False)
SHARED = dict(kv_layout="paged", page_size=16, seqused_k=True, group=4, pack_gqa=True)
OWN_PARTS = dict(maximum="exact", lone_tiles=False, own_parts=True)
ONE_QUERY_TILE = dict(maximum="exact", lone_tiles=False, one_query_tile=True)
IN_PAGES = STORED_IN_PAGES | dict(head_dim=512)  # rows of 584 bytes
LATENT = dict(qkv_dtype="bf16", head_dim=576, head_dim_v=512, latent=True, pack_gqa=True)


def pages(size: int, **more) -> dict:
    return dict(kv_layout="paged", page_size=size, seqused_k=True, **more)


def queries(size: int) -> dict:
    """Packed, over pages."""
    return pages(size, q_layout="packed", group=4)


def shared(size: int = 0, **more) -> dict:
    """Packed queries in stream-K splits of packed keys, or of pages."""
    return (queries(size) if size else PACKED | dict(group=4)) | more


def latent(group: int, size: int, **more) -> dict:
    return LATENT | pages(size, group=group) | more


# name: family, choices, whether the split is stream-K.
CASES = {
    "two query tiles, pages": ("mha2q", BF16 | D128 | queries(16), False),
    "two query tiles, pages, shared heads": ("mha2q", BF16 | D128 | queries(16) | SHARED_HEADS, False),
    "two query tiles, pages of 8, dense queries": ("mha2q", BF16 | D128 | pages(8, group=4) | SHARED_HEADS, False),
    "two query tiles, pages of 8, shared keys": ("mha2q", BF16 | D128 | shared(8, pack_gqa=True), True),
    "two query tiles of 64 columns, pages of 8": ("mha2q", BF16 | D64 | queries(8) | SHARED_HEADS, False),
    "two query tiles of 64 columns, pages": ("mha2q", BF16 | D64 | queries(16), False),
    "two query tiles of 96 columns, pages": ("mha2q", BF16 | dict(head_dim=96) | queries(16), False),
    "two query tiles of 64 columns, 8 bits, pages": ("mha2q", E4M3 | D64 | queries(16), False),
    "two query tiles of 64 columns, soft cap": ("mha2q", BF16 | D64 | queries(16) | CAP, False),
    "two query tiles, 64 columns of K and 128 of V": ("mha2q", BF16 | OF_64 | queries(16), False),
    "two query tiles, skipped tiles": ("mha2q", BF16 | D128 | queries(16) | SKIPPED, False),
    "two query tiles of 64 columns, skipped tiles": ("mha2q", BF16 | D64 | SKIPPED | FUNCTIONS, False),
    "two query tiles of 8 bits, skipped tiles": ("mha2q", E4M3 | D128 | PACKED | SKIPPED, False),
    "two query tiles, gathered": ("mha2q", BF16 | D128 | queries(3), False),
    "two query tiles of 64 columns, gathered": ("mha2q", BF16 | D64 | queries(3), False),
    "two query tiles, 192 columns": ("mha2q", BF16 | OF_192 | PACKED, False),
    "two query tiles, 192 columns, gathered": ("mha2q", BF16 | OF_192 | queries(3), False),
    "two query tiles, scales of tokens": ("mha2q", OF_TOKENS | D128 | queries(16), False),
    "two query tiles, shared keys": ("mha2q", BF16 | D128 | shared(pack_gqa=True), True),
    "two query tiles of 64 columns, shared keys": ("mha2q", BF16 | D64 | shared(pack_gqa=True), True),
    "two query tiles, shared keys, pages": ("mha2q", BF16 | D128 | shared(16, pack_gqa=True), True),
    "two query tiles of 64 columns, shared keys, pages": ("mha2q", BF16 | D64 | shared(16), True),
    "two query tiles, shared keys, gathered": ("mha2q", BF16 | D128 | shared(3), True),
    "two query tiles, 192 columns, shared keys": ("mha2q", BF16 | OF_192 | shared(pack_gqa=True), True),
    "two query tiles, 192 columns, shared keys, gathered": ("mha2q", BF16 | OF_192 | shared(3), True),
    "two query tiles, scales of tokens, shared keys": ("mha2q", OF_TOKENS | D128 | queries(16), True),
    "two query tiles, scales of tokens, soft cap": ("mha2q", OF_TOKENS | D128 | queries(16) | CAP, False),
    "two query tiles, scales of tokens, functions": ("mha2q", OF_TOKENS | D128 | queries(16) | FUNCTIONS, False),
    "two query tiles, scales of tokens, functions, shared keys": (
        "mha2q", OF_TOKENS | D128 | queries(16) | FUNCTIONS, True
    ),
    "two query tiles, scales of tokens, window": (
        "mha2q", OF_TOKENS | D128 | queries(16) | FUNCTIONS | dict(mask=masks.window(512, 0).mask), False
    ),
    "two query tiles over 8 bits, shared keys": ("mhawiden2q", DEQUANTIZED | D128 | shared(16, pack_gqa=True), True),
    "two query tiles over NVFP4, pages": ("mhawiden2q", OF_BLOCKS | D128 | queries(16), False),
    "two query tiles over NVFP4, gathered": ("mhawiden2q", OF_BLOCKS | D128 | queries(3), False),
    "two query tiles of 64 columns over NVFP4, interleaved": (
        "mhawiden2q", OF_BLOCKS | D64 | queries(16) | MIXED_SCALES, False
    ),
    "two query tiles over NVFP4, functions": ("mhawiden2q", OF_BLOCKS | D128 | queries(16) | FUNCTIONS, False),
    "two query tiles over MXFP8": ("mhawiden2q", OF_BLOCKS | D128 | queries(16) | dict(kv_dtype="mxe4m3"), False),
    "two query tiles, 8 bits": ("mha2q", E4M3 | D128 | queries(16), False),
    "two query tiles, 8 bits, gathered": ("mha2q", E4M3 | D128 | queries(3), False),
    "one query tile, pages": ("mha1q", BF16 | D128 | queries(16), False),
    "one query tile, gathered": ("mha1q", BF16 | D128 | queries(3), False),
    "one query tile, scales of tokens": ("mha1q", OF_TOKENS | D128 | queries(16), False),
    "one query tile, shared keys": ("mha1q", BF16 | D64 | SHARED, True),
    "one query tile, shared keys, packed queries": ("mha1q", BF16 | D64 | SHARED | dict(q_layout="packed"), True),
    "one query tile, shared keys, gathered": ("mha1q", BF16 | D128 | SHARED | dict(page_size=3), True),
    "one query tile, scales of tokens, shared keys": ("mha1q", OF_TOKENS | D128 | queries(16), True),
    "one query tile, shared keys, 128 columns": ("mha1q", BF16 | D128 | SHARED, True),
    "one query tile of 192 columns, shared keys": ("mha1q", BF16 | OF_192 | SHARED, True),
    "one query tile of 64 columns, shared keys, gathered": ("mha1q", BF16 | D64 | shared(3), True),
    "one query tile, 16 bits beside 8": ("mha1q", MIXED | ROPE, False),
    "two query tiles, 16 bits beside 8": ("mha2q", MIXED | ROPE, False),
    "rotary columns of 8 bits, with scales": ("mharope", SCALED | ROPE, False),
    "pairs, pages": ("mhapair", BF16 | D128 | queries(16), False),
    "pairs of 64 columns, pages": ("mhapair", BF16 | D64 | queries(16), False),
    "pairs, gathered": ("mhapair", BF16 | D128 | queries(3), False),
    "pairs, 192 columns, gathered": ("mhapair", BF16 | OF_192 | queries(3), False),
    "scales of blocks": ("mhamx", dict(qkv_dtype="e4m3", descales="xy") | D128 | PACKED, False),
    "few rows, pages": ("mhaswap", BF16 | D128 | FEW | pages(16), False),
    "few rows, gathered": ("mhaswap", BF16 | D128 | FEW | pages(3), False),
    "few rows, shared keys": ("mhaswap", BF16 | D128 | FEW | pages(16), True),
    "few rows over 8 bits": ("mhawiden", DEQUANTIZED | D128 | FEW | pages(16), False),
    "few rows over 8 bits, gathered": ("mhawiden", DEQUANTIZED | D128 | FEW | pages(3), False),
    "two query tiles over 8 bits": ("mhawiden2q", DEQUANTIZED | D128 | queries(16), False),
    "two query tiles of 192 columns over 8 bits": ("mhawiden2q", DEQUANTIZED | OF_192 | queries(16), False),
    "two query tiles of 192 columns over NVFP4": ("mhawiden2q", OF_BLOCKS | OF_192 | queries(16), False),
    "two query tiles of 192 columns over NVFP4, gathered": ("mhawiden2q", OF_BLOCKS | OF_192 | queries(3), False),
    "two query tiles of 192 columns over NVFP4, causal, interleaved": (
        "mhawiden2q", OF_BLOCKS | OF_192 | queries(16) | MIXED_SCALES | dict(mask=masks.Causal()), False
    ),
    "two query tiles of 192 columns over MXFP8": (
        "mhawiden2q", OF_BLOCKS | OF_192 | queries(16) | dict(kv_dtype="mxe4m3"), False
    ),
    "wide heads over 8 bits, pages": ("mhawidewiden", DEQUANTIZED | dict(head_dim=256) | queries(16), False),
    "wide heads over 8 bits, gathered": ("mhawidewiden", DEQUANTIZED | dict(head_dim=256) | queries(3), False),
    "wide heads over 8 bits, shared keys": ("mhawidewiden", DEQUANTIZED | OF_192 | shared(16, pack_gqa=True), True),
    "wide heads over NVFP4, shared keys": ("mhawidewiden", OF_BLOCKS | OF_192 | shared(16, pack_gqa=True), True),
    "wide heads over 8 bits, rotary columns": ("mhawidewiden", DEQUANTIZED | ROPE, False),
    "wide heads over 8 bits, rotary columns of 16": ("mhawidewiden", DEQUANTIZED | ROPE | OF_BF16, False),
    "wide heads, gathered": ("mhawide", BF16 | dict(head_dim=512, head_dim_v=256) | queries(3), False),
    "wide heads in pairs, gathered": ("mhawidepair", BF16 | dict(head_dim=512, head_dim_v=256) | queries(3), False),
    "two query tiles, own parts": ("mha2q", BF16 | D128 | OWN_PARTS, False),
    "two query tiles, own parts, pages": ("mha2q", BF16 | D128 | OWN_PARTS | queries(16), False),
    "one query tile with the bits of two, pages": ("mha2q", BF16 | D128 | ONE_QUERY_TILE | queries(16), False),
    "one query tile with the bits of two, gathered": ("mha2q", BF16 | D128 | ONE_QUERY_TILE | queries(3), False),
    "latent rows": ("mla_decode", latent(64, 64, rows=64), False),
    "latent rows in pairs, sinks": ("mla_pair", latent(128, 64, sink=True), False),
    "rows of 656 bytes, sinks": ("mla_widen", latent(32, 64, rows=32, sink=True) | STORED, False),
    "latent rows by index": ("mla_decode", latent(64, 1, rows=64), False),
    "latent rows in pairs": ("mla_pair", latent(128, 64), False),
    "latent rows in pairs, gathered": ("mla_pair", latent(128, 5), False),
    "rows of 656 bytes": ("mla_widen", latent(32, 64, rows=32) | STORED, False),
    "rows of 656 bytes by index, shared keys": ("mla_widen", latent(32, 1, rows=32) | STORED, True),
    "rows of 576 bytes": ("mla_widen", latent(32, 64, rows=32) | dict(kv_dtype="e4m3", descales="KV"), False),
    "rows of 576 bytes by index, shared keys": (
        "mla_widen",
        latent(32, 1, rows=32) | dict(kv_dtype="e4m3", descales="KV"),
        True,
    ),
    "rows of 576 bytes in pairs": ("mla_widenpair", latent(128, 64) | dict(kv_dtype="e4m3", descales="kv"), False),
    "rows of 576 bytes in pairs, gathered": (
        "mla_widenpair",
        latent(128, 5) | dict(kv_dtype="e4m3", descales="kv"),
        False,
    ),
    "rows of 576 bytes, fp16": (
        "mla_widen",
        latent(32, 64, rows=32) | dict(qkv_dtype="fp16", kv_dtype="e4m3", descales="kv"),
        False,
    ),
    "rows of 656 bytes in pairs": ("mla_widenpair", latent(128, 64) | STORED, False),
    "rows of 656 bytes in pairs, gathered": ("mla_widenpair", latent(128, 5) | STORED, False),
    "rows of 584 bytes": ("mla_widen", latent(32, 1, rows=32) | IN_PAGES, False),
    "rows of 584 bytes, shared keys": ("mla_widen", latent(32, 1, rows=32) | IN_PAGES, True),
}  # fmt: skip
# Bytes a thread that ptxas still spills, outside of the loops over key tiles by the SASS of sm_100a: addresses of
# partial results and of rows, which softmax reads once a work tile. The 152 registers of softmax are the most
# that CTAs of 640 threads have (96 a thread at launch), beside 64 and 56 of the other roles.
SPILLS = {
    "rows of 656 bytes in pairs by index, shared keys": (24, "mla_widenpair", latent(128, 1) | STORED, True),
    "rows of 656 bytes in pairs, shared keys": (8, "mla_widenpair", latent(128, 64) | STORED, True),
    "latent rows of 16 heads": (8, "mla_decode", latent(16, 64, rows=64), False),
    "latent rows, sinks": (8, "mla_decode", latent(64, 64, rows=64, sink=True), False),
    # Here correction spills.
    "one query tile, scales of tokens, functions": (8, "mha1q", OF_TOKENS | D128 | queries(16) | FUNCTIONS, False),
}  # fmt: skip
# The same in these loops, with the number of accesses: 56 registers of a dequantizing thread hold the scales and page
# table entries of its next key of K and of V, too. Without entries ahead a turn would wait for memory.
# Of a thread that dequantizes blocks and computes its share of the keys, on sm_103a alone, whose maxima need registers.
# Correction with own parts leaves softmax 176 registers, one too few beside P of 64 columns and a sink.
# Of 192 columns with own parts ptxas spills where no exponential is on the FMA units, and nothing with 2 pairs there.
# All kernels of 192 columns have one number, because a row has the same bits in all of them.
# Packed queries that share heads, over pages of 8: a key tile has 16 copies of K and 16 of V. ptxas spills values that
# all roles read, in each of them. It spills nothing without packed queries, at 64 columns, over pages of 16, and with
# shared keys.
SPILLS_IN_LOOPS = {
    "two query tiles, pages of 8, packed queries": (
        *(32, 58, "mha2q"), BF16 | D128 | queries(8) | SHARED_HEADS, False,
    ),
    "two query tiles of 192 columns, own parts": (48, 9, "mha2q", BF16 | OF_192 | OWN_PARTS, False),
    "two query tiles of 64 columns, sinks, own parts": (
        *(8, 5, "mha2q"), BF16 | D64 | OWN_PARTS | dict(sink=True), False,
    ),
    "two query tiles over NVFP4, shared keys": (
        *(0, 0, "mhawiden2q"), OF_BLOCKS | D128 | shared(16, pack_gqa=True), True,
    ),
    "two query tiles of 192 columns over NVFP4, shared keys": (
        *(0, 0, "mhawiden2q"), OF_BLOCKS | OF_192 | shared(16, pack_gqa=True), True,
    ),
    "two query tiles of 192 columns over MXFP8, shared keys": (
        *(0, 0, "mhawiden2q"), OF_BLOCKS | OF_192 | shared(16, pack_gqa=True) | dict(kv_dtype="mxe4m3"), True,
    ),
    "rows of 584 bytes in pairs": (40, 13, "mla_widenpair", latent(128, 1) | IN_PAGES, False),
    "rows of 584 bytes in pairs, shared keys": (40, 13, "mla_widenpair", latent(128, 1) | IN_PAGES, True),
}  # fmt: skip
# In the last, the load warp has its own address.
QUICK = (
    "two query tiles of 64 columns, gathered",
    "rows of 656 bytes in pairs",
    "one query tile, shared keys",
)
# The owner of keys, which has the largest code of a backward pass: 168 registers are the most of 320 threads. The
# kernel of all gradients spills sizes of a sequence where results are float32; a tile reads some of them.
BACKWARD = {
    "backward by one kernel": (0, dict(mask=masks.Causal())),
    "backward by one kernel, packed": (0, dict(mask=masks.Causal(), packed=True, used=True)),
    "backward by one kernel, float32": (16, dict(mask=masks.Causal(), accumulate=True)),
    "backward by one kernel, packed, float32": (
        32,
        dict(mask=masks.Causal(), packed=True, used=True, accumulate=True),
    ),
    "backward": (0, dict(mask=masks.Causal(), joint=False)),
    "backward, soft cap": (0, dict(mask=masks.Causal(), score_mod=score_mods.soft_cap(30.0))),
    "backward, documents": (16, dict(mask_mod=SAME_DOCUMENT, aux=(("i32", 2),))),
    "backward, lists": (0, dict(listed=True)),
    "backward, 192 columns": (0, dict(depth=192, mask=masks.Causal())),
    "backward, 256 columns": (0, dict(depth=256, depth_v=256, mask=masks.Causal())),
    "backward, 256 columns, lists, soft cap": (
        0,
        dict(depth=256, depth_v=256, listed=True, score_mod=score_mods.soft_cap(30.0)),
    ),
    "backward, listed documents": (
        16,
        dict(mask_mod=SAME_DOCUMENT, aux=(("i32", 2),), listed=True),
    ),
}


def config_of(family: str, choices: dict, shared: bool, arch: str) -> FA4Config:
    choices = dict(mask=masks.Causal(), write_lse=True) | choices
    config = choose_config(family=family, arch=arch, **choices)
    if shared:
        config = split_configs(config, True, shared=True)[0]
    assert config.schedule.family == family and not config.refusals()
    return config


def stack_of(*case) -> int:
    return nvdisasm.resources(compile_artifacts(config_of(*case)).cubin).stack_bytes


@pytest.mark.parametrize(
    "arch", [cases.ARCHS[0], *(pytest.param(a, marks=pytest.mark.sweep) for a in cases.ARCHS[1:])]
)
@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.sweep) for n in CASES]
)
def test_nothing_is_spilled(name, arch):
    assert stack_of(*CASES[name], arch) == 0


@pytest.mark.sweep
@pytest.mark.parametrize("name", BACKWARD)
def test_a_backward_pass_spills_no_more_than_is_known(name):
    most, choices = BACKWARD[name]
    choices = dict(dtype="bf16", depth=128, depth_v=128) | choices
    cubin = compile_artifacts(BackwardConfig(**choices)).cubin
    assert nvdisasm.resources(cubin).stack_bytes <= most


@pytest.mark.parametrize("name", INDEXERS)
def test_an_indexer_spills_nothing(name):
    assert nvdisasm.resources(compile_artifacts(INDEXERS[name]).cubin).stack_bytes == 0


def in_loops_over_key_tiles(cubin: bytes, folder: Path) -> list[program.Instruction]:
    """Accesses to local memory in a loop inside of a role's loop over work tiles."""
    file = folder / "kernel.cubin"
    file.write_bytes(cubin)
    found = []
    for function in program.parse(nvdisasm.disassemble(file)):
        working = [loop for loop in function.loops if not loop.retries]
        for block in function.blocks:
            if sum(block.index in loop.blocks for loop in working) >= 2:
                found += [ins for ins in block.instructions if ins.name in ("LDL", "STL")]
    return found


@pytest.mark.sweep
@pytest.mark.parametrize("name", SPILLS)
def test_what_is_spilled_is_not_read_in_a_loop_over_key_tiles(name, tmp_path):
    most, *case = SPILLS[name]
    cubin = compile_artifacts(config_of(*case, cases.ARCHS[0])).cubin
    assert nvdisasm.resources(cubin).stack_bytes <= most
    assert not in_loops_over_key_tiles(cubin, tmp_path)


@pytest.mark.sweep
@pytest.mark.parametrize("name", SPILLS_IN_LOOPS)
def test_a_loop_over_key_tiles_reads_no_more_than_is_known(name, tmp_path):
    most, accesses, *case = SPILLS_IN_LOOPS[name]
    cubin = compile_artifacts(config_of(*case, cases.ARCHS[0])).cubin
    assert nvdisasm.resources(cubin).stack_bytes <= most
    assert len(in_loops_over_key_tiles(cubin, tmp_path)) <= accesses


def test_every_rule_is_among_them():
    families = {family for family, *_ in CASES.values()} | {case[1] for case in SPILLS.values()}
    assert families == {rule.schedule.family for rule in RULES}
