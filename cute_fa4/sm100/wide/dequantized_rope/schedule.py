"""RopeTile: WideTile, whose last unit of K arrives as 8 bits; two warps dequantize it in its slot.

    FA4Config(qk_depth=192, ov_depth=128, rope_depth=64, rope_dtype="e4m3", schedule=RopeTile())    bf16

    K tile    unit 0 | unit 1 | unit 2                of 64 columns, 16 KiB each
              of the head     | k_rope, 8 bits -> 16

A row of a unit is a line of 128 bytes: 64 columns of 16 bits. As 8 bits they take the first half of the line, and TMA
fills the other half with zeros. So a thread dequantizes a line in place, and no other thread has a part of it.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from cute_fa4.dtypes import QUANTIZED, is_quantized

from ...blueprint.problem import Problem
from ...blueprint.reach import Extra
from ...blueprint.warp_roles import WarpRoles
from ..schedule import WideTile
from ..warp_roles import DequantizingWarpRoles
from . import barriers


@dataclass(frozen=True)
class RopeTile(WideTile):
    """The schedule of SM100MHARope; its choices are those of WideTile.

    warps   one softmax warpgroup, correction, mma, load and two warps that dequantize: 384 threads
    """

    family: ClassVar[str] = "mharope"
    barrier_table: ClassVar = staticmethod(barriers.table)
    extras: ClassVar[Extra] = Extra.ROPE | Extra.DEQUANTIZED_ROPE

    warps: WarpRoles = field(default_factory=DequantizingWarpRoles)

    def refusals(self, problem: Problem) -> list[str]:
        if not is_quantized(problem.rope_dtype):
            return [
                f"rope_dtype={problem.rope_dtype!r}: this family dequantizes columns of {' or '.join(QUANTIZED)}: use "
                "schedule=TwoTiles() for those of 16 bits"
            ]
        return super().refusals(problem)
