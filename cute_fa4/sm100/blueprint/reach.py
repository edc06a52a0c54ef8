"""Which problems families of kernels support: head dims, extras of some, and why a problem is not supported.

Each family declares its own: RowSchedule.extras and its depths, or an argument of problem_not_built.
"""

from enum import Flag, auto

from cute_fa4.dtypes import E4M3, OPERANDS, QUANTIZED, UNQUANTIZED, is_quantized
from cute_fa4.layouts.block_scales import BLOCK

from .problem import Problem

DEPTHS = tuple(range(8, 129, 8))  # of V and O, and in every family of Q and K, each its own
QK_DEPTHS = tuple(range(8, 193, 8))  # of Q and K where a K tile may have a rest outside its slot
WIDE_DEPTHS = tuple(range(8, 257, 8))  # of V and O in the family for what is beyond
DEEP = tuple(
    range(272, 513, 16)
)  # of Q and K there; of V and O in two launches (calls/split_keys/halves.py)
DEPTHS_OF_CACHE_BLOCKS = (64, 128, 192, 256)  # over caches whose blocks have scales
DEPTHS_OF_FP8 = tuple(range(16, 129, 16))  # rows of 8-bit elements, too, are multiples of 16 bytes
QK_DEPTHS_OF_FP8 = tuple(range(16, 257, 16))  # of Q and K where a slot has two spans of eight bits
DEEP_OF_FP8 = tuple(range(160, 257, 32))  # of V and O, of eight bits, in two launches


class Extra(Flag):
    """Features that some families have, and others do not.

    DEQUANTIZED_KEYS  8-bit keys with 16-bit queries (dequantized/ of few_rows/, two_tiles/ and wide/)
    CACHE_BLOCKS  keys whose blocks have scales (NVFP4, MXFP8) with 16-bit queries (the same folders)
    ROPE          columns of K from a separate tensor
    DEQUANTIZED_ROPE  such columns of 8 bits with 16-bit Q (wide/dequantized_rope/, wide/dequantized/)
    MIXED_ROPE    such columns of 16 bits with 8-bit K
    KEY_SCALES    a scale for each key (roles/token_scales.py)
    BLOCK_SCALES  scales of blocks of Q and K (two_tiles/block_scaled/)
    BLOCK_LISTS   lists of key blocks (work/block_lists.py)
    SKIPPED_TILES key tiles of small weights are skipped (steps/skipped.py)
    """

    DEQUANTIZED_KEYS = auto()
    CACHE_BLOCKS = auto()
    ROPE = auto()
    DEQUANTIZED_ROPE = auto()
    MIXED_ROPE = auto()
    KEY_SCALES = auto()
    BLOCK_SCALES = auto()
    BLOCK_LISTS = auto()
    SKIPPED_TILES = auto()


def depths_of(qkv_dtype: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Head dims that some family runs -> (of Q and K, of V and O)."""
    if is_quantized(qkv_dtype):
        return QK_DEPTHS_OF_FP8, DEPTHS_OF_FP8 + DEEP_OF_FP8
    return (WIDE_DEPTHS + DEEP,) * 2


def in_words(depths: tuple[int, ...]) -> str:
    """
    >>> in_words(DEPTHS), in_words(WIDE_DEPTHS + DEEP)
    ('a multiple of 8 up to 128', 'a multiple of 8 up to 256 or of 16 up to 512')
    >>> in_words(DEPTHS_OF_FP8 + DEEP_OF_FP8)
    'a multiple of 16 up to 128 or of 32 up to 256'
    """
    step = depths[0]
    dense = [depth for place, depth in enumerate(depths, 1) if depth == place * step]
    words = f"a multiple of {step} up to {dense[-1]}"
    if dense[-1] == depths[-1]:
        return words
    return f"{words} or of {depths[-1] - depths[-2]} up to {depths[-1]}"


def o_dtypes(problem: Problem) -> tuple[str, ...]:
    """The dtypes that O can have; partial results of split keys are float32."""
    if problem.split_keys:
        return ("f32",)
    unquantized = UNQUANTIZED if problem.is_quantized else (problem.qkv_dtype,)
    return (*unquantized, E4M3.name)


def problem_not_built(
    problem: Problem,
    extras: Extra,
    qk_depths: tuple = QK_DEPTHS,
    ov_depths: tuple = DEPTHS,
    qk_depths_of_fp8: tuple = DEPTHS_OF_FP8,
) -> list[str]:
    """Why a family does not run a problem yet, regardless of its tiles.

    extras: its features; qk_depths, ov_depths: 16-bit head dims that it runs; qk_depths_of_fp8: 8-bit ones
    """
    why = []
    if problem.q_block and Extra.BLOCK_LISTS not in extras:
        why.append(
            f"q_block={problem.q_block}: lists of key blocks are for schedule=TwoTiles(), OneTile() or "
            "BlockScaled(): use one of them, or q_block=0"
        )
    if problem.skip_softmax and Extra.SKIPPED_TILES not in extras:
        why.append(
            "skip_softmax=True: key tiles are skipped with schedule=TwoTiles(): use it, or skip_softmax=False"
        )
    if problem.block_scales and Extra.BLOCK_SCALES not in extras:
        why.append(
            f"descales={problem.descales!r}: scales of blocks of {BLOCK} are for schedule=BlockScaled(): use it, or "
            "scales of each sequence and head"
        )
    if problem.token_scales and Extra.KEY_SCALES not in extras:
        why.append(
            f"descales={problem.descales!r}: scales of each key are for schedule=TwoTiles(), OneTile(), or "
            "SwappedTile(): use one of them, or scales of each sequence and head"
        )
    if problem.kv_dtype is not None and Extra.DEQUANTIZED_KEYS not in extras:
        why.append(
            f"kv_dtype={problem.kv_dtype!r} with qkv_dtype={problem.qkv_dtype!r}: this family multiplies K as "
            f"it is stored: use schedule=DequantizedTile(), SlotTwoTiles() or SlotWideTile(), or queries of "
            f"{problem.kv_dtype}"
        )
    if problem.cache_blocks and Extra.CACHE_BLOCKS not in extras:
        why.append(
            f"kv_dtype={problem.kv_dtype!r} is not supported in this family: use schedule=DequantizedTile() or "
            f"SlotTwoTiles(), or SlotWideTile() beyond 128 columns, or one of {', '.join(QUANTIZED)}"
        )
    elif problem.cache_blocks:
        qk_depths, ov_depths = (
            tuple(depth for depth in depths if depth in DEPTHS_OF_CACHE_BLOCKS)
            for depths in (qk_depths, ov_depths)
        )
    if problem.qkv_dtype not in OPERANDS:
        why.append(
            f"qkv_dtype={problem.qkv_dtype!r} is not supported: use one of {', '.join(OPERANDS)}"
        )
    outputs = o_dtypes(problem)
    if problem.o_dtype not in outputs:
        why.append(
            f"o_dtype={problem.o_dtype!r} is not supported for qkv_dtype={problem.qkv_dtype!r}: use "
            f"{' or '.join(map(repr, outputs))}"
        )
    if is_quantized(problem.o_dtype) and problem.ov_depth % 16:
        why.append(
            f"o_dtype={problem.o_dtype!r} with ov_depth={problem.ov_depth}: rows of 8-bit elements are multiples of 16 "
            f"bytes: use a multiple of 16, or o_dtype={outputs[0]!r}"
        )
    of_qk, of_ov = (
        (qk_depths, ov_depths) if not problem.is_quantized else (qk_depths_of_fp8, DEPTHS_OF_FP8)
    )
    if (
        problem.mixes_rope and Extra.MIXED_ROPE in extras
    ):  # rope_refusals of the tiles say which columns
        of_qk = QK_DEPTHS
    for name, depths in (("qk_depth", of_qk), ("ov_depth", of_ov)):
        if getattr(problem, name) not in depths:
            why.append(f"{name}={getattr(problem, name)} is not supported: use {in_words(depths)}")
    if problem.latent:
        why.append("latent=True: only kernels that read V from K do: use schedule=LatentTile()")
    if problem.rope_depth and Extra.ROPE not in extras:
        why.append(
            f"rope_depth={problem.rope_depth}: kernels for few rows load K from one tensor: use schedule=OneTile()"
        )
    if problem.rope_depth and problem.is_quantized:
        one_dtype = problem.rope_stored_dtype == problem.qkv_dtype
        if not (Extra.MIXED_ROPE in extras and (problem.mixes_rope or one_dtype)):
            why.append(
                f"rope_depth={problem.rope_depth} with qkv_dtype={problem.qkv_dtype!r}, rope_dtype="
                f"{problem.rope_dtype!r} is not supported: use rope_dtype={problem.qkv_dtype!r}, 'bf16' or 'fp16' "
                "with schedule=TwoTiles() or OneTile(), or qkv_dtype='bf16' or 'fp16'"
            )
    elif problem.rope_dtype is not None and Extra.DEQUANTIZED_ROPE not in extras:
        why.append(
            f"rope_dtype={problem.rope_dtype!r} is not supported in this family: use None, or e4m3 with "
            "schedule=RopeTile()"
        )
    if problem.scale_dtype is not None and not (
        problem.scales_rope and Extra.DEQUANTIZED_ROPE in extras
    ):
        why.append(
            f"scale_dtype={problem.scale_dtype!r} with rope_dtype={problem.rope_dtype!r} is not supported: use None, "
            f"or 'f32' with rope_dtype {' or '.join(QUANTIZED)} and schedule=RopeTile()"
        )
    return why
