"""Every example runs, and prints what its docstring promises."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.suite import scripts

ROOT = Path(__file__).resolve().parent.parent


def run(*command: str, fresh: bool = False) -> str:
    """Output of a Python script of this repository; its error output fails the test.

    fresh: in a process that has imported nothing. One example is enough to see that they need no more.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    where = dict(cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, timeout=300)
    if fresh:
        command = [sys.executable, *command]
        result = subprocess.run(command, capture_output=True, text=True, **where)
    else:
        result = scripts.run(*command, **where)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_one_call_prints_shape_error_and_what_executed_it():
    # 40 characters: one key tile, so that the emulator needs a few seconds.
    output = run("examples/01_one_call.py", "--characters", "40", "--head-dim", "64", fresh=True)
    assert "q (1, 40, 8, 64), torch.bfloat16" in output
    assert "out (1, 40, 8, 64), torch.bfloat16; lse (1, 8, 40), torch.float32" in output
    assert "error     out " in output
    assert "of them tcgen05.mma" in output
    assert "by the emulator" in output


@pytest.mark.parametrize("arguments", [[], ["--head-dim", "72", "--arch", "sm_103a"]], ids=str)
def test_the_schedule_is_printed_from_the_code(arguments):
    output = run("examples/02_read_the_schedule.py", *arguments)
    assert output.index("Barriers") < output.index("p_ready") < output.index("Timeline")


def test_the_schedule_of_a_refused_configuration_is_the_refusal():
    with pytest.raises(AssertionError, match="qk_depth=52 is not supported"):
        run("examples/02_read_the_schedule.py", "--head-dim", "52")


def test_a_small_kernel_runs_on_the_emulator():
    output = run("examples/03_any_cute_kernel_on_the_emulator.py")
    assert "512 numbers reversed in blocks of 128: equal to torch" in output
    assert "st.shared" in output


def test_the_broken_kernel_is_told_where_it_reads_what_nobody_wrote():
    output = run("examples/03_any_cute_kernel_on_the_emulator.py", "--broken")
    assert output.startswith("UninitializedRead: ")
    assert "ld.shared" in output
    assert "03_any_cute_kernel_on_the_emulator.py" in output  # the Python line of the read


def test_paged_decode_writes_what_the_model_says_in_float64():
    # 8 keys a page: prompts of 5 and 180 characters cross edges, the second one also that of a tile, so that each of
    # the two parts of its keys has some.
    output = run("examples/04_paged_decode.py", "--steps", "2", "--page-size", "8")
    assert "modelled for a B200" in output and "TB/s" in output
    assert "pages of 8 keys used" in output
    assert "logits (3, 3, 256)" in output


def test_a_race_is_named_that_no_result_shows():
    output = run("examples/05_find_a_race.py", "--seeds", "1")
    assert output.startswith("One run of the broken kernel, unchecked: the right numbers.")
    results, order = output.split("With the order of accesses checked:")
    assert "3 schedules at level none, no finding" in results
    assert (
        "race (RaceError) under in_order, random 0, hostile 0" in order
        and "05_find_a_race.py:51" in order
    )
    assert "Released after the read: 3 schedules at level ptx, no finding" in order


def test_an_exported_kernel_runs_where_nothing_may_be_compiled():
    output = run("examples/06_aot.py")
    assert "called: out (2, 200, 4, 64) off by " in output
    assert "not exported: kernel mha2q_bf16_d64_g1_window" in output
    assert output.endswith("0 kernels compiled; compiler imported: False\n")


def test_a_transformers_model_writes_the_same_with_our_attention():
    output = run("examples/07_transformers.py", "--tokens", "2")
    assert "the same tokens: 3 of 3 sequences" in output
    assert output.count(" in bf16\n") == 2


def test_the_transformers_example_says_what_to_install():
    without = "import runpy, sys; sys.modules['transformers'] = None; runpy.run_path(sys.argv[1])"
    with pytest.raises(AssertionError, match=r"pip install 'cute-fa4\[transformers\]'"):
        run("-c", without, "examples/07_transformers.py")


def test_the_tour_of_the_emulator_sees_what_it_announces(tmp_path):
    output = run("examples/08_emulator_tour.py", "--out", str(tmp_path))
    assert "S0 = Q0 kv[0]" in output  # the timeline has the kernel's names
    assert re.search(r"\d\d\.\d% of \d+ instructions", output)
    before, after = output.split("With the order of accesses checked:")
    assert "3 schedules at level ptx, no finding" in before
    assert "3 schedules at level none, no finding" in before
    assert "race (ProxyError)" in after and "store.py" in after
    assert (tmp_path / "pipeline.svg").read_text().startswith("<svg")
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_two_processes_share_a_sequence_and_a_cache():
    # 24 rows: four chunks of six, and a page of 16 keys for rank 0, eight keys for rank 1.
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")
    output = run(*torchrun, "examples/10_context_parallel.py", "--rows", "24")
    for rank, keys in ((0, 16), (1, 8)):
        for layout in ("ring", "all_gather", "all_to_all"):
            assert f"rank {rank} of 2: {layout}, 12 of 24 rows, error " in output
        assert f"rank {rank} of 2: decode, {keys} of 24 keys, error " in output
        text = "window differs: [null, 0] on rank 0; [null, null] on rank 1; accepted: one for all"
        assert f"rank {rank}: refused: context_parallel_attention: {text}" in output


def test_a_cache_of_eight_bits_takes_half_of_the_bytes():
    output = run("examples/12_fp8_cache.py", "--tokens", "2")
    nbytes = re.findall(r"cache of \w+ +(\d+) bytes", output)
    assert int(nbytes[0]) == 2 * int(nbytes[1])
    assert re.search(r"logits differ by +\d\.\d\d% of their norm", output)


def test_every_example_is_named_by_a_test():
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for script in (ROOT / "examples").glob("*.py"):
        assert f'{script.name}"' in tests, script.name


# A notebook has a separate file for every cell, from which the DSL reads the kernel.
CELLS = """
import json, linecache, sys
names = {"__name__": "__main__"}
for number, cell in enumerate(json.load(open(sys.argv[1]))["cells"]):
    if cell["cell_type"] == "code":
        text, file = "".join(cell["source"]), f"/notebook/cell_{number}.py"
        linecache.cache[file] = (len(text), None, text.splitlines(True), file)
        exec(compile(text, file, "exec"), names)
    else:
        print("".join(cell["source"]).splitlines()[0])
"""


def test_the_notebook_leads_from_a_kernel_to_its_race():
    """Its cells, one after the other: right numbers, the race, the race by name, no finding."""
    output = run("-c", CELLS, "examples/09_from_a_kernel_to_its_race.ipynb")
    _, first, second, third, fourth = re.split(r"^## \d\. .*$", output, flags=re.M)
    assert first.strip() == "right: True"
    assert "race on shared offset" in second and "(dynamic +0x0, slot)" in second
    assert second.count("slot[lane] = x[b * BLOCK + lane]") == 1, "the lines of both are printed"
    assert second.count("total += slot[(lane + 1) % BLOCK]") == 1
    assert "5 schedules at level ptx, 0 of them clean; 1 findings" in third
    assert "slot" in third and "(producer)" in third and "(consumer)" in third
    assert "5 schedules at level ptx, no finding" in fourth and "right: True" in fourth
    assert "producer  waits for empty" in fourth and "cell_1.py:" in fourth


def test_the_notebook_is_stored_without_results():
    notebook = json.loads((ROOT / "examples" / "09_from_a_kernel_to_its_race.ipynb").read_text())
    assert notebook["nbformat"] == 4
    for cell in notebook["cells"]:
        assert cell["cell_type"] == "markdown" or (
            cell["outputs"] == [] and cell["execution_count"] is None
        )


def test_a_latent_cache_gives_what_the_layer_defines():
    output = run("examples/11_mla_decode.py", "--tokens", "2")
    assert output.count("relative error") == 3
    assert "a token of the cache takes 1152 bytes, 10240 if 16 heads had their own" in output


@pytest.mark.parametrize(
    "bug, kind, cause",
    [
        ("", "", r"C of 128 x 128, k = 256: differs by at most \d\.\de-0\d from float64"),
        ("parity", "BarrierError", r"cause\? multiply waited for full\[0\] with parity 0 at "),
        (
            "bytes",
            "RaceError",
            r"cause\? full\[0\]: 16384 bytes were announced for phase 0, and 32768",
        ),
        ("empty", "Deadlock", r"empty\[0\], phase 0, .*awaited with parity 0: of the first phase"),
        ("leak", "TensorMemoryError", r"allocated by\n(.*\n){2}  PTX line \d+: tcgen05\.alloc"),
    ],
)
def test_the_kernel_to_debug_is_right_or_told_the_cause(bug, kind, cause):
    options = ["--broken", bug] if bug else []
    output = run("examples/13_debug_a_tcgen05_kernel.py", "--depth", "256", *options)
    assert output.startswith(kind)
    assert re.search(cause, output)


def test_cubes_of_a_video_see_the_cubes_around_them():
    """Four cubes along the frames and two along the rows: 10 of 16 pairs of the former are neighbours."""
    output = run("examples/14_video_block_mask.py")
    assert "1024 tokens in 8 cubes, 62% of the blocks are seen" in output
    assert "largest error against float64" in output


def test_sparse_attention_chooses_the_keys_of_the_reference():
    output = run("examples/15_sparse_attention.py", "--keys", "300", "--queries", "2")
    assert "keys: 256 of 256 are those of the float64 reference" in output
    assert "out (2, 16, 512): relative error " in output


def test_native_sparse_attention_selects_the_blocks_of_the_reference():
    """Four of eight blocks, and all three of the shorter sequence, for two key-value heads."""
    output = run("examples/16_nsa_decode.py", "--keys", "460", "161", "--selected", "4")
    assert "blocks: 14 of 14 are those of the float64 reference" in output
    assert "gated sum (2, 1, 16, 64): relative error " in output
    assert "one softmax (2, 1, 16, 64): relative error " in output
