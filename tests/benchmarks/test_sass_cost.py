"""The loop counter on listings small enough to count by hand, and the cost bar of the kernel."""

import importlib.util
import re
from pathlib import Path

import pytest

from benchmarks import sass_cost
from benchmarks.sass.cost import Shape, kernel_cost
from benchmarks.sass.our_kernel import compile_artifacts
from cute_fa4.compiler import toolkit
from cute_fa4.emulator.model import nvdisasm
from cute_fa4.emulator.model.program import parse
from cute_fa4.sm100.choose.choose_config import choose_config
from tests.benchmarks.sass_text import listing, repeat

MMA_LOOP = f"""
    .L_mma:
    SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R2
    @!P0 BRA `(.L_retry)
    .L_go:
    {repeat("UTCHMMA gdesc[UR8], gdesc[UR10], tmem[UR12], tmem[UR14], idesc[UR15], UP0", 32)}
    @P1 BRA `(.L_mma)
    EXIT
    .L_retry:
    SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R2
    @!P0 BRA `(.L_retry)
    BRA `(.L_go)
"""


D128 = Shape(head_dim=128, block_n=128)


def cost_of(code: str, shape: Shape = D128):
    return kernel_cost(parse(listing(code)), shape)


def test_a_retry_after_the_end_is_not_counted():
    """wait, branch, 32 MMAs, back edge = 35; the three instructions out of line are no steady state."""
    assert cost_of(MMA_LOOP).of("mma").instructions == 2 + 32 + 1


def test_a_retry_in_the_way_is_counted_once():
    code = MMA_LOOP.replace("@!P0 BRA `(.L_retry)\n    .L_go:", "@!P0 BRA `(.L_mma)", 1)
    # The wait is now the loop's own first block, jumped to by the back edge too: one try a pass.
    code = ".L_outer:\n MOV R1, R2\n" + code.replace("@P1 BRA `(.L_mma)", "@P1 BRA `(.L_outer)")
    assert cost_of(code).of("mma").instructions == 1 + 2 + 32 + 1


def test_jumps_upward_out_of_retries_are_no_loops():
    """`BRA .L_go` goes upward, but .L_go is also reached without it: no loop of its own."""
    (function,) = parse(listing(MMA_LOOP))
    assert [loop.retries for loop in function.loops] == [False, True]


@pytest.mark.parametrize("short, long", [(1, 5), (5, 1)])
def test_where_the_code_branches_the_longer_way_counts(short, long):
    code = f"""
        .L_loop:
        UTCHMMA gdesc[UR8], gdesc[UR10], tmem[UR12], tmem[UR14], idesc[UR15], UP0
        BRA.U UP0, `(.L_else)
        {repeat("MOV R1, R2", short)}
        BRA `(.L_join)
        .L_else:
        {repeat("MOV R1, R2", long)}
        .L_join:
        @P1 BRA `(.L_loop)
        EXIT
    """
    # MMA, branch, one arm (the first ends with a BRA), back edge
    assert cost_of(code).of("mma").instructions == 2 + max(short + 1, long) + 1


def test_a_branch_for_warps_that_have_diverged_is_passed_by_the_others():
    """Shuffles and votes also have a slow path; the condition of BRA.DIV is an operand, a uniform register."""
    code = """
        BRA.DIV UR4, `(.L_apart)
        MOV R1, R2
        EXIT
        .L_apart:
        NOP
        EXIT
    """
    (function,) = parse(listing(code))
    first = function.successors[0]
    names = sorted(function.blocks[block].instructions[0].name for block in first)
    assert names == ["MOV", "NOP"]


def test_the_loop_over_work_tiles_is_not_the_loop_over_keys():
    """A persistent kernel repeats prologue, key loop and epilogue; the innermost loop is meant."""
    code = f"""
        .L_work:
        {repeat("UTCHMMA gdesc[UR8], gdesc[UR10], tmem[UR12], tmem[UR14], idesc[UR15], UP0", 16)}
        .L_keys:
        {repeat("UTCHMMA gdesc[UR8], gdesc[UR10], tmem[UR12], tmem[UR14], idesc[UR15], UP0", 32)}
        @P0 BRA `(.L_keys)
        @P1 BRA `(.L_work)
        EXIT
    """
    cost = cost_of(code)
    assert [loop.instructions for loop in cost.loops] == [33]


def test_a_closed_convergence_region_continues_at_its_label():
    """BSYNC jumps to the label of the BSSY with its register, here past the MOV."""
    code = """
        .L_loop:
        UTCHMMA gdesc[UR8], gdesc[UR10], tmem[UR12], tmem[UR14], idesc[UR15], UP0
        BSSY.RECONVERGENT B0, `(.L_after)
        BSYNC.RECONVERGENT B0
        MOV R1, R2
        .L_after:
        @P1 BRA `(.L_loop)
        EXIT
    """
    assert cost_of(code).of("mma").instructions == 4


@pytest.mark.parametrize(
    "shape, mmas",
    [
        # 8 steps of 16 of Q K^T and 8 of P V, two query tiles
        (Shape(head_dim=128, block_n=128), 32),
        (Shape(head_dim=64, block_n=128), 2 * (4 + 8)),
        # depth 72: the fifth step of Q K^T is half zeros, and is issued
        (Shape(head_dim=72, block_n=128), 2 * (5 + 8)),
        # 32 of 8 bits a step
        (Shape(head_dim=128, block_n=128, bits=8), 2 * (4 + 4)),
    ],
    ids=str,
)
def test_mmas_of_a_key_tile(shape, mmas):
    assert shape.mmas_per_key_tile == mmas


def test_mma_loop_that_does_half_a_tile_is_scaled_to_a_whole_one():
    code = MMA_LOOP.replace("@P1 BRA", f"{repeat('UMOV UR1, UR2', 10)}\n@P1 BRA")
    half = cost_of(code, Shape(head_dim=128, block_n=384))  # 2 * (8 + 24) = 64 MMAs
    assert half.of("mma").units == 0.5
    assert half.of("mma").per_unit == 2 * (2 + 32 + 10 + 1)


def softmax_loop(label: str, keys: int, mask: str = "") -> str:
    """P of bf16 leaves in keys / 2 columns; 2 LDTM, 2 STTM, keys MUFU, mask, back edge."""
    return f"""
        {label}:
        {repeat(f"LDTM.x{keys // 2} R4, tmem[UR4]", 2)}
        {mask}
        {repeat("MUFU.EX2 R4, R4", keys)}
        {repeat(f"STTM.x{keys // 4} tmem[UR4], R4", 2)}
        @P0 BRA `({label})
    """


def test_softmax_loops_are_told_apart_by_their_selects_and_scaled_to_128_keys():
    code = softmax_loop(".L_masked", 64, repeat("FSEL R4, R4, -INF , P0", 64))
    code += softmax_loop(".L_unmasked", 64, repeat("FSEL R4, R4, -INF , P0", 4))
    cost = cost_of(code + MMA_LOOP)
    assert cost.of("softmax masked").per_unit == 2 * (2 + 64 + 64 + 2 + 1)
    assert cost.of("softmax unmasked").per_unit == 2 * (2 + 4 + 64 + 2 + 1)
    assert cost.of("softmax unmasked").opcodes["MUFU"] == 64


def test_masks_made_of_guarded_moves_are_masks():
    code = softmax_loop(".L_masked", 128, repeat("@!P0 MOV R4, 0xff800000", 128))
    assert cost_of(code + MMA_LOOP).kinds == ["softmax masked", "mma"]


def test_of_two_copies_the_dearer_counts():
    """Each softmax warpgroup may have its own copy of the loop; the slower one sets the pace."""
    code = softmax_loop(".L_zero", 128) + softmax_loop(".L_one", 128, "NOP")
    assert cost_of(code + MMA_LOOP).of("softmax unmasked").instructions == 2 + 1 + 128 + 2 + 1


def test_correction_loop_is_scaled_to_both_accumulators():
    code = f"""
        .L_correct:
        {repeat("LDTM.x16 R4, tmem[UR4]", 8)}
        {repeat("FMUL2 R4, R4, R2", 64)}
        {repeat("STTM.x16 tmem[UR4], R4", 8)}
        @P0 BRA `(.L_correct)
    """
    # One pass rescales 128 of the 256 columns of two 128-column accumulators.
    assert cost_of(code + MMA_LOOP).of("correction").per_unit == 2 * (8 + 64 + 8 + 1)


def test_local_memory_is_counted_in_the_whole_kernel():
    assert cost_of(MMA_LOOP).local_memory_instructions == 0
    spills = "STL.64 [R1], R4\nLDL R4, [R1+0x8]\n"
    assert cost_of(spills + MMA_LOOP).local_memory_instructions == 2


def test_without_a_kernel_the_error_says_what_is_accepted():
    with pytest.raises(ValueError, match=r"0 functions with UTC\*MMA.*exactly one kernel"):
        cost_of("MOV R1, R2\nEXIT")
    with pytest.raises(ValueError, match="no 'correction' loop.*found: \\['mma'\\]"):
        cost_of(MMA_LOOP).of("correction")


def test_missing_nvdisasm_names_the_package(monkeypatch):
    monkeypatch.setenv("NVDISASM", "/nowhere/nvdisasm")
    with pytest.raises(nvdisasm.NvdisasmError, match="pip install nvidia-cuda-nvdisasm"):
        nvdisasm.find()
    monkeypatch.delenv("NVDISASM")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(nvdisasm.NvdisasmError, match="pip install nvidia-cuda-nvdisasm"):
        nvdisasm.find()


def test_a_file_that_is_no_cubin_is_refused(tmp_path):
    with pytest.raises(nvdisasm.NvdisasmError, match="not a cubin"):
        nvdisasm.resources(b"PTX text")
    path = tmp_path / "not.cubin"
    path.write_bytes(b"PTX text")
    with pytest.raises(nvdisasm.NvdisasmError, match="not.cubin"):
        nvdisasm.disassemble(path)


@pytest.fixture(scope="module")
def causal_kernel(tmp_path_factory):
    """The kernel the bar is stated for: head dim 128, bf16, causal, B200."""
    config = choose_config(
        qkv_dtype="bf16", head_dim=128, causal=True, arch="sm_100a", maximum="exact"
    )
    path = tmp_path_factory.mktemp("cubin") / "causal.cubin"
    path.write_bytes(compile_artifacts(config).cubin)
    return config, *sass_cost.measure(path, Shape(config.qk_depth, config.tiles.BN))


# The published FlashAttention-4 (4.0.0b36) takes 514. The loop of the MMA warp also holds what happens between two work
# tiles and not at every key tile: what a key tile executes is counted in test_model_headline.py.
def test_the_softmax_loop_is_within_the_cost_bar(causal_kernel):
    _, cost, _ = causal_kernel
    assert cost.of("softmax unmasked").per_unit <= 560


def test_the_table_of_the_readme_is_this_kernels(causal_kernel):
    _, cost, _ = causal_kernel
    row = r"^\| d=128 bf16 causal, sm_100a \|" + r" (\d+) / \d+ \|" * 4
    readme = Path(sass_cost.__file__).with_name("README.md").read_text()
    written = [int(count) for count in re.search(row, readme, re.MULTILINE).groups()]
    kinds = ("softmax unmasked", "softmax masked", "mma", "correction")
    # Another ptxas needs a few more or less.
    assert written == pytest.approx([cost.of(kind).per_unit for kind in kinds], abs=8)


def test_the_measured_loops_are_whole_tiles(causal_kernel):
    """A loop that was unrolled or split otherwise than the kernel says would be scaled wrongly."""
    config, cost, _ = causal_kernel
    assert cost.of("softmax unmasked").units == config.tiles.BN / 128
    # Three of the four products of a key tile; the fourth is of the query tile that may leave it out
    # (two_tiles/uneven).
    assert cost.of("mma").units == 0.75
    assert cost.of("correction").units == 1


def test_no_local_memory(causal_kernel):
    _, cost, resources = causal_kernel
    assert cost.local_memory_instructions == 0
    assert resources.stack_bytes == 0


def test_registers_at_launch_fill_the_register_file(causal_kernel):
    """setmaxnreg moves registers between warps; what it may move is what the launch asked for."""
    config, _, resources = causal_kernel
    assert resources.registers * config.schedule.warps.threads == 65536


def test_the_counter_agrees_with_counts_made_by_hand(tmp_path):
    """flash-attn-4 4.0.0b36, d=128 causal bf16 sm_100a, counted by hand in its SASS (ptxas 12.9)."""
    if importlib.util.find_spec("flash_attn") is None:
        pytest.skip("flash-attn-4 is not installed (extra `compare`)")
    path = tmp_path / "flash_attn_4.cubin"
    sass_cost.flash_attn_4_cubin(path, 128, "bf16", True, "sm_100a")
    cost, _ = sass_cost.measure(path, Shape())
    by_hand = {"softmax unmasked": 514, "softmax masked": 689, "mma": 220, "correction": 186}
    if toolkit.ptxas_of(path.read_bytes()).startswith("13."):
        by_hand["mma"] -= (
            15  # its address computations, which the newer ptxas takes out of the loop
        )
    # Another ptxas schedules with a few address computations more or less; a counter that follows
    # a retry or misses a branch is off by more.
    for kind, count in by_hand.items():
        assert cost.of(kind).per_unit == pytest.approx(count, abs=8), kind
    assert cost.of("softmax unmasked").opcodes["MUFU"] == 113


def test_cli_prints_the_report_of_a_file(causal_kernel, tmp_path, capsys, monkeypatch):
    config, cost, resources = causal_kernel
    monkeypatch.setattr(sass_cost, "measure", lambda path, shape: (cost, resources))
    assert sass_cost.main(["--cubin", str(tmp_path / "causal.cubin"), "--json"]) == 0
    assert f'"instructions": {cost.of("mma").instructions}' in capsys.readouterr().out
    assert sass_cost.main(["--cubin", str(tmp_path / "causal.cubin")]) == 0
    assert "local-memory instructions" in capsys.readouterr().out
