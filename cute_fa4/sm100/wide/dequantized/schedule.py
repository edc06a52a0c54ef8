"""SlotWideTile: WideTile over keys of 8 or 4 bits, which two warps dequantize in their slots of the ring.

    FA4Config(qk_depth=192, ov_depth=128, kv_dtype="e4m3", schedule=SlotWideTile())                  bf16
    FA4Config(qk_depth=192, ov_depth=128, kv_dtype="e4m3", rope_depth=64, schedule=SlotWideTile())   RoPE columns too
    FA4Config(qk_depth=256, kv_dtype="e2m1", schedule=SlotWideTile())                                NVFP4

A slot holds a unit of 128 columns, 32 KiB: at depth 256 four slots fit beside Q, a unit in each running product and two
in flight. Q and K are multiplied in the dtype of q, P and V in fp16 (docs/decisions/0031).
"""

from dataclasses import dataclass, field
from typing import ClassVar

from cute_fa4.dtypes import CACHED, QUANTIZED

from ...blueprint.problem import Problem
from ...blueprint.reach import DEEP_OF_FP8, DEPTHS_OF_FP8, QK_DEPTHS_OF_FP8, Extra
from ...blueprint.rope_columns import may_be_beside_dequantized
from ...blueprint.warp_roles import WarpRoles
from ..schedule import WideTile
from ..warp_roles import DequantizingWarpRoles
from . import barriers
from .tiles import SlotWideTiles


@dataclass(frozen=True)
class SlotWideTile(WideTile):
    """The schedule of SM100MHAWideWiden; its choices are those of WideTile.

    warps   one softmax warpgroup, correction, mma, load and two warps that dequantize: 384 threads
    """

    family: ClassVar[str] = "mhawidewiden"
    qk_depths: ClassVar[tuple] = QK_DEPTHS_OF_FP8
    ov_depths: ClassVar[tuple] = DEPTHS_OF_FP8 + DEEP_OF_FP8
    barrier_table: ClassVar = staticmethod(barriers.table)
    extras: ClassVar[Extra] = (
        Extra.ROPE | Extra.DEQUANTIZED_KEYS | Extra.DEQUANTIZED_ROPE | Extra.CACHE_BLOCKS
    )

    warps: WarpRoles = field(default_factory=DequantizingWarpRoles)

    def tiles(self, problem: Problem) -> SlotWideTiles:
        return SlotWideTiles.of(problem)

    def load_apart(self, problem: Problem) -> bool:
        """Also in stream-K splits of keys with scales of blocks, where ptxas spilled the common address."""
        return super().load_apart(problem) or (problem.share_keys and problem.cache_blocks)

    def refusals(self, problem: Problem) -> list[str]:
        if problem.kv_dtype not in CACHED:
            return [
                f"kv_dtype={problem.kv_dtype!r}: these kernels dequantize keys: use one of {', '.join(CACHED)}, or "
                "schedule=WideTile()"
            ]
        why = super().refusals(problem)
        if not may_be_beside_dequantized(problem.rope_dtype, problem.qkv_dtype):
            why.append(
                f"rope_dtype={problem.rope_dtype!r} with qkv_dtype={problem.qkv_dtype!r}: columns of 16 bits are "
                f"multiplied as they are stored: use {problem.qkv_dtype!r}, {' or '.join(map(repr, QUANTIZED))}"
            )
        if problem.scale_dtype is not None:
            why.append(
                f"scale_dtype={problem.scale_dtype!r} with kv_dtype={problem.kv_dtype!r}: the scale of k is that of "
                "its RoPE columns, too: use None"
            )
        return why
