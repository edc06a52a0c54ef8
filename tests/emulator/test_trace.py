"""The trace: what the pipeline's docstring draws is what a run recorded, and the outputs are well-formed."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from cute_fa4 import emulator, flash_attn_func
from cute_fa4.emulator import __main__ as command_line
from cute_fa4.emulator.reports import trace
from cute_fa4.sm100.choose.config import FA4Config

# The first call of a process warns that the emulator executes it.
pytestmark = pytest.mark.filterwarnings("ignore")

ROOT = Path(__file__).resolve().parents[2]

# Four key tiles: the first and the last are special, two are the steady state.
TILES = 4
RING = FA4Config().barriers.kv_slots
PICTURE = ["trace", "--head-dim", "128", "--causal", "--seqlen", "256", "--seqlen-k", "512"]


@pytest.fixture(scope="module")
def recorded():
    return record("in_order", 0)


def record(mode, seed, heads=1):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(1, n, heads, 128, generator=generator).bfloat16()
        for n in (256, 128 * TILES, 128 * TILES)
    )
    with trace.record() as recording, emulator.use(mode=mode, seed=seed, checks=None):
        flash_attn_func(q, k, v)
    return recording


def names(recording, role):
    return [mark.name for mark in recording.marks if mark.role == role and mark.kind != "wait"]


def slot(recording, name, nth=0):
    """Slot of the nth mark of a name, of the first warp that has one."""
    marks = [mark for mark in recording.marks if mark.name == name]
    return [mark.slot for mark in marks if mark.row == marks[0].row][nth]


def drawn_in_mma_py(work_tiles):
    """S0 S1 | O0 | then for every tile S0 O1 S1 O0 | O1; K and V of the n-th key tile are in slots 2 n and 2 n + 1."""
    expected, pending = [], []
    for n in range(work_tiles * TILES):
        k, v = 2 * n % RING, (2 * n + 1) % RING
        expected += [f"S0 = Q0 kv[{k}]", *pending, f"S1 = Q1 kv[{k}]", f"O0 = S0 kv[{v}]"]
        pending = [f"O1 = S1 kv[{v}]"]
    return expected + pending


def test_the_tensor_core_works_in_the_order_that_mma_py_draws(recorded):
    assert names(recorded, "tensor core") == drawn_in_mma_py(1)


def test_the_first_product_of_a_work_tile_comes_before_the_last_of_the_one_before():
    """Two heads: in order, the CTA of the first claims the second."""
    recording = record("in_order", 0, heads=2)
    assert names(recording, "tensor core") == drawn_in_mma_py(2)
    loads = [name for name in names(recording, "copies") if name.startswith("load")]
    assert loads == 2 * drawn_in_load_py(), "the ring comes out even: eight tiles a head"


def drawn_in_load_py():
    """The loads of one work tile."""
    ring = [f"load kv[{i % RING}]" for i in range(2 * TILES)]
    return ["load Q0", ring[0], "load Q1", *ring[1:]]


def test_copies_are_in_the_order_that_load_py_draws(recorded):
    loads = [name for name in names(recorded, "copies") if name.startswith("load")]
    assert loads == drawn_in_load_py()


@pytest.mark.parametrize("mode, seed", [("hostile", 1), ("random", 1)])
def test_slots_after_thread_barriers_do_not_depend_on_the_schedule(recorded, mode, seed):
    """Correction warps meet before and after each chunk of O. A warp that is at the next meeting already does not
    move those that are still leaving this one.
    """
    reads = lambda recording: {
        mark.row: mark.slot for mark in recording.marks if mark.name == "read O1"
    }
    assert reads(record(mode, seed)) == reads(recorded)


def test_slots_respect_the_barriers(recorded):
    """An MMA is after the copies that it reads, a read of S after the MMA, a store of P after the read."""
    # S is read and P written in three parts (two quarters, then half): of the first tile, whose first quarter gives the
    # reference, too. Before the ring comes round, a slot has one load.
    for nth in range(2):
        first = slot(recorded, f"S0 = Q0 kv[{2 * nth % RING}]")
        read, wrote = slot(recorded, "read S0", 3 * nth), slot(recorded, "write S0", 3 * nth)
        assert slot(recorded, f"load kv[{2 * nth % RING}]") < first < read < wrote
        assert wrote < slot(recorded, f"O0 = S0 kv[{(2 * nth + 1) % RING}]")
    waits = [mark for mark in recorded.marks if mark.kind == "wait"]
    assert waits and all(mark.first <= mark.last and mark.slot <= mark.end for mark in waits)


def test_what_a_mark_raises_is_what_the_barrier_table_says(recorded):
    raised = {mark.name: mark.raises for mark in recorded.marks if mark.raises}
    assert raised["load Q0"] == ["q_full[0]"]
    of_s0 = [mark.raises for mark in recorded.marks if mark.name == "read S0" and mark.raises]
    assert ["row_scale[0]"] in of_s0  # others raise p_ready[0]
    assert "s_ready[0]" in raised["S0 = Q0 kv[2]"]


@pytest.mark.parametrize("mode, seed", [("hostile", 1), ("random", 1)])
def test_the_order_within_a_role_does_not_depend_on_the_schedule(recorded, mode, seed):
    other = record(mode, seed)
    for role in ("tensor core", "softmax 0"):
        first = {row: [m.name for m in recorded.marks if m.row == row and m.kind not in ("wait", "sync")]
                 for row in recorded.rows if recorded.rows[row] == role}  # fmt: skip
        for row, expected in first.items():
            found = [m.name for m in other.marks if m.row == row and m.kind not in ("wait", "sync")]
            assert list(dict.fromkeys(found)) == list(dict.fromkeys(expected))


def test_the_text_has_a_column_for_each_role_and_says_what_time_is_not(recorded):
    text = recorded.text()
    assert text.startswith("A line is a slot: order, not duration.")
    header = text.splitlines()[2].split("  ")
    assert [c.strip() for c in header if c.strip()] == [
        "slot", "softmax 0", "softmax 1", "correction", "mma", "load", "copies", "tensor core", "raises",
    ], "load has a column because it waits: eight tiles for a ring of four"  # fmt: skip
    assert "wait s_ready[0]" in text and "S0 = Q0 kv[0] x8" in text


def test_chrome_events_are_complete(recorded, tmp_path):
    """Every mark is an event of a named thread; arrows come in pairs and go forward in time."""
    recorded.chrome(tmp_path / "trace.json")
    document = json.loads((tmp_path / "trace.json").read_text())
    events = document["traceEvents"]
    threads = {
        (e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"
    }
    marks = [e for e in events if e["ph"] == "X"]
    assert len(marks) == len(recorded.marks) and {(e["pid"], e["tid"]) for e in marks} <= threads
    assert all(e["dur"] >= 1 for e in marks)
    starts = {e["id"]: e["ts"] for e in events if e["ph"] == "s"}
    ends = {e["id"]: e["ts"] for e in events if e["ph"] == "f"}
    assert starts.keys() == ends.keys() and starts
    assert all(starts[i] <= ends[i] for i in starts)
    assert "order, not duration" in document["otherData"]["time"]


def test_the_picture_is_well_formed_and_names_what_the_text_names(recorded):
    tree = ElementTree.fromstring(recorded.svg())
    words = [element.text for element in tree.iter() if element.text]
    for word in ("softmax 0", "tensor core", "S0 = Q0 kv[0]", "load Q0", "read S0"):
        assert word in words
    assert any("order, not duration" in word for word in words)


def test_launches_follow_each_other():
    """Two launches: the second begins after the first on both axes."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 128, 1, 64, generator=generator).bfloat16() for _ in "qkv")
    with trace.record() as recording:
        for _ in range(2):
            flash_attn_func(q, k, v)
    loads = [mark for mark in recording.marks if mark.name == "load Q0"]
    work = [mark for mark in recording.marks if mark.kind not in ("wait", "sync")]
    first = work[: work.index(loads[1])]
    assert len(recording.kernels) == 2 and len(first) == len(work) // 2
    assert all(mark.end < loads[1].slot and mark.last < loads[1].first for mark in first)


def test_the_command_writes_everything(tmp_path, capsys):
    out, picture = tmp_path / "trace.json", tmp_path / "pipeline.svg"
    command = [*PICTURE, "--out", str(out), "--svg", str(picture), "--text"]
    assert command_line.main(command) == 0
    printed = capsys.readouterr().out
    assert "softmax 0" in printed and "marks of" in printed
    assert json.loads(out.read_text())["traceEvents"]
    # docs/pipeline.svg is this picture: python -m cute_fa4.emulator trace ... --svg docs/pipeline.svg
    assert picture.read_text() == (ROOT / "docs" / "pipeline.svg").read_text()


def test_the_command_prints_coverage_and_refuses_a_trace_to_nowhere(capsys):
    assert command_line.main(["coverage", "--head-dim", "64", "--seqlen", "128"]) == 0
    assert "instructions in 1 launches" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        command_line.main(["trace"])
    assert "say what to write" in capsys.readouterr().err
