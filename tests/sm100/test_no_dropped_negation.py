"""The assembler keeps the absolute values of a two-dimensional neighbourhood mask.

On SM100 ptxas fused neg, max, max into one VIMNMX3 whose negated operand was gone, so that a mask showed 260 keys of
169 (triton#11032, pytorch#190973). The emulator executes PTX and cannot see that: this reads the machine code.
"""

import re
from pathlib import Path

import pytest

from benchmarks.sass.our_kernel import compile_artifacts
from cute_fa4.emulator.model import nvdisasm
from cute_fa4.layouts.scalars import maximum
from cute_fa4.sm100.blueprint.score_mods import ScoreMod
from cute_fa4.sm100.choose.choose_config import choose_config
from tests import cases

WIDTH, REACH = 32, 6  # of a picture whose pixels are the rows; pixels that far away are seen


def is_near(batch, head, q, k, aux):
    dx, dy = q % WIDTH - k % WIDTH, q // WIDTH - k // WIDTH
    return maximum(maximum(dx, -dx), maximum(dy, -dy)) <= REACH


@pytest.mark.parametrize(
    "arch", [cases.ARCHS[0], *(pytest.param(a, marks=pytest.mark.sweep) for a in cases.ARCHS[1:])]
)
def test_no_maximum_of_three_stands_where_the_mask_has_absolute_values(arch, tmp_path: Path):
    config = choose_config(qkv_dtype="bf16", head_dim=64, mask_mod=ScoreMod.of(is_near), arch=arch)
    ptx, cubin = compile_artifacts(config)
    kernel = tmp_path / "kernel.cubin"
    kernel.write_bytes(cubin)
    code = nvdisasm.disassemble(kernel)
    assert len(re.findall(r"\babs\.s32\b", ptx)) >= 2 * config.tiles.BN, (
        "of each key two, or the mask is written otherwise"
    )
    assert "VIMNMX" in code and "VIMNMX3" not in code
