"""profile(): laws and formulas on two small kernels; no time of this machine is looked at."""

import json
import re
from pathlib import Path

import pytest
import torch

from benchmarks.cycle_model import pages, plots
from cute_fa4 import emulator
from cute_fa4.emulator.__main__ import main
from cute_fa4.emulator.host import driver_api, ptx_files
from cute_fa4.emulator.model import (
    align,
    launches,
    names,
    nvdisasm,
    profile,
    program,
    ptxas,
    report,
    stated_error,
    table,
    trace,
)
from cute_fa4.emulator.model.constants import fitted_b200
from tests.emulator.model.kernels import A_TURN, exponentials, handed_over

ROOT = Path(__file__).resolve().parents[3]
TURNS = 24  # enough for a steady state after the first quarter


@pytest.fixture(autouse=True, scope="module")
def need_programs():
    try:
        nvdisasm.find()
    except nvdisasm.NvdisasmError as missing:
        pytest.skip(str(missing))
    if not list(ptxas.candidates()):
        pytest.skip("no ptxas: pip install nvidia-cuda-nvcc")


@pytest.fixture(scope="module")
def handed():
    """The profiles of HANDED_OVER, with its graph of causes."""
    kept = []
    run = profile.Machine.run

    def keeping(*args, **kwargs):
        kept.append(run(*args, **kwargs))
        return kept[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profile.Machine, "run", keeping)
        found = emulator.profile(handed_over, TURNS)
    return found, kept[0].graph


@pytest.fixture(scope="module")
def handed_profile(handed):
    (one,) = handed[0].kernels
    return one


def cycles_of(turns, threads=32):
    (one,) = emulator.profile(exponentials, turns, threads).kernels
    return one.cycles


def test_a_loop_of_exponentials_takes_the_time_of_their_pipe():
    """Independent ones keep it busy: 32 lanes at a quarter of the SM's rate, for each; a turn ends with a jump."""
    value = {name: constant.value for name, constant in fitted_b200().items()}
    each = 32 / (value["rate_mufu"] * value["pipe_efficiency"] / 4)
    first, second = 16, 48
    least = (second - first) * A_TURN * each
    assert least <= cycles_of(second) - cycles_of(first) <= 1.02 * least


def test_warps_of_one_sub_partition_share_the_pipe_and_four_do_not():
    assert cycles_of(32, 128) == pytest.approx(cycles_of(32, 32), rel=0.02)
    assert cycles_of(32, 256) == pytest.approx(2 * cycles_of(32, 32), rel=0.1)


def test_what_binds_the_loop_is_said():
    (one,) = emulator.profile(exponentials, 64, 256).kernels  # two warps a sub-partition
    assert one.bound == names.PIPES["mufu"] and one.busy["mufu"] > 0.9
    (best, cycles), *_ = one.what_if.items()
    assert best == f"time in the {names.PIPES['mufu']}" and cycles < one.cycles


def test_every_node_happens_at_the_latest_of_its_causes(handed):
    graph = handed[1]
    assert graph.evaluate() == pytest.approx(graph.times)


def test_without_the_waits_for_a_barrier_nothing_comes_later(handed):
    graph = handed[1]
    keys = {tag.name for edges in graph.edges for _, _, tag in edges if tag.kind == "wait"}
    assert len(keys) == 2
    for key in keys:
        spared = graph.evaluate(lambda tag, key=key: tag.kind == "wait" and tag.name == key)
        assert all(a <= b for a, b in zip(spared, graph.times, strict=True))
        assert spared[-1] < graph.times[-1], "warps that hand over wait for each other"


def test_bounds_are_no_more_than_the_estimate_or_than_that_without_a_change(handed_profile):
    unchanged = handed_profile.what_if[profile.UNCHANGED]
    assert unchanged <= handed_profile.cycles
    assert all(cycles <= unchanged for cycles in handed_profile.what_if.values())


def test_the_reasons_of_a_role_add_up_to_a_turn(handed_profile):
    assert handed_profile.turns > 1
    for role in handed_profile.roles:
        assert sum(role.cycles.values()) == pytest.approx(handed_profile.turn)


def test_the_critical_path_is_as_long_as_the_steady_state(handed_profile):
    assert sum(handed_profile.path.values()) == pytest.approx(handed_profile.turn)


def test_the_table_names_barriers_roles_and_the_error(handed):
    text = str(handed[0])
    for word in ("full", "empty", "fill", "read", profile.STATED_ERROR, "registers a thread"):
        assert word in text
    assert re.search(r"read waits for full at PTX line \d+; ended by fill 100%", text)
    assert re.search(r"fill waits for empty at PTX line \d+; ended by read 100%", text)


def test_barriers_and_warps_without_names_are_known_by_where_they_wait():
    text = str(emulator.profile(handed_over, TURNS, None))
    assert "warp 1 waits for mbarrier awaited at PTX line" in text


def test_json_gives_the_profiles_back(handed, tmp_path):
    path = tmp_path / "profile.json"
    handed[0].write_json(path)
    assert report.read_json(path).as_dict() == handed[0].as_dict()
    assert str(report.read_json(path)) == str(handed[0])
    path.write_text(json.dumps({"format": 0}))
    with pytest.raises(ValueError, match="format 0; accepted: 1"):
        report.read_json(path)


def test_a_comparison_has_both_numbers_and_no_difference_with_itself(handed):
    found = handed[0]
    text = found.against(found)
    assert f"{found.kernels[0].cycles:,.0f}" in text
    rows = [line for line in text.split("\n") if "  cycles " in line]
    assert len(rows) == 2 and all("as fast" in row for row in rows)


def test_versions_of_a_kernel_are_paired_by_name_and_else_in_order(handed_profile):
    renamed = profile.Profile.from_dict(handed_profile.as_dict() | {"kernel": "second_version"})
    assert table.pairs([handed_profile], [handed_profile]) == [(handed_profile, handed_profile)]
    assert table.pairs([handed_profile], [renamed]) == [(handed_profile, renamed)]


def test_the_stated_error_is_that_of_the_calibration():
    """Means of the rows marked fit and check, their worst, and the H200's errors, as the page has them."""
    page = (ROOT / "docs/performance/calibration.md").read_text()
    mean, worst = zip(*re.findall(r"mean error ([\d.]+)%, worst ([\d.]+)%", page)[:2], strict=True)
    text = profile.STATED_ERROR
    assert f"within {max(map(float, mean)):.0f} % on average" in text
    assert f"{max(map(float, worst)):.0f} % at worst" in text
    assert "7 to 10 % too fast" in text and "too fast on every shape, by 7 to 10 %" in page


def test_the_stated_error_has_the_kernels_of_others():
    """Their number and the ends of their ratios; the row of the backward pass is what its own table says."""
    rows = json.loads(stated_error.FILE.read_text())["rows"]
    ratios = [row["modelled"] / row["published"] for row in rows]
    assert f"{len(rows)} other kernels" in profile.STATED_ERROR
    assert f"{min(ratios):.2f} to {max(ratios):.2f} times" in profile.STATED_ERROR
    (theirs,) = (row for row in rows if row["maker"] == "flash-attn-4")
    page = (pages.FOLDER / "backward.md").read_text()
    rows = plots.read_table(page, "backward")
    (row,) = (x for x in rows if (x["maker"], x["head dims"]) == ("flash-attn-4", "128/128"))
    assert theirs["modelled"] == float(row["TFLOPS of all"])


STORED_BY_MATRIX = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 y) {
    .reg .b32 %r<5>; .reg .b64 %rd<3>;
    .shared .align 16 .b8 tile[128];
    ld.param.b64 %rd1, [y]; mov.u32 %r1, %tid.x; mov.u32 %r2, tile; shl.b32 %r3, %r1, 4; and.b32 %r3, %r3, 127;
    add.u32 %r3, %r2, %r3;
    stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r3], {%r1};
    shl.b32 %r4, %r1, 2; add.u32 %r4, %r2, %r4; ld.shared.b32 %r4, [%r4];
    mul.wide.u32 %rd2, %r1, 4; add.s64 %rd1, %rd1, %rd2; st.global.b32 [%rd1], %r4;
    ret;
}
"""


def test_a_profiled_kernel_stores_by_stmatrix():
    y = torch.zeros(32, dtype=torch.int32)
    kernel = ptx_files.load(STORED_BY_MATRIX)
    assert emulator.profile(lambda: kernel.launch(y, grid=1, block=32)).kernels
    assert y.tolist() == list(range(32))


BULK_STORES = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 y) {
    .reg .b64 %rd<5>; .reg .b32 %r<5>; .reg .pred %p<3>;
    .shared .align 128 .b8 tile[4096];
    ld.param.b64 %rd1, [y]; mov.u32 %r1, tile; mov.u32 %r2, %tid.x; shl.b32 %r2, %r2, 2; add.u32 %r2, %r1, %r2;
    st.shared.b32 [%r2], 1; fence.proxy.async; bar.sync 0;
    mov.u32 %r3, %tid.x; setp.ne.u32 %p1, %r3, 0; @%p1 bra DONE;
    mov.u32 %r4, 0;
    LOOP:
    cp.reduce.async.bulk.global.shared::cta.bulk_group.add.s32 [%rd1], [%r1], 4096;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group.read 0;
    add.u32 %r4, %r4, 1; setp.lt.u32 %p2, %r4, 8; @%p2 bra LOOP;
    cp.async.bulk.global.shared::cta.bulk_group [%rd1+4096], [%r1], 2048;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
    DONE: ret;
}
"""


def test_bulk_reductions_are_stores_with_their_bytes():
    """A loop of them takes the time of its bytes; the sums are right, so the recorder changes nothing."""
    y = torch.zeros(2048, dtype=torch.int32)
    kernel = ptx_files.load(BULK_STORES)
    with launches.recorded() as recorded:
        kernel.launch(y, grid=1, block=1024)
    assert y[:1024].eq(8).all() and y[1024:1536].eq(1).all() and not y[1536:].any()
    stores = [e.data for e in recorded["k"].trace.warps[0, 0] if e.kind == "store"]
    assert stores == [(4096, True)] * 8 + [(2048, False)]
    (one,) = emulator.profile(lambda: kernel.launch(y, grid=1, block=1024)).kernels
    assert one.cycles >= 8 * 4096 / fitted_b200()["reduce_rate"].value


TENSOR_STORES = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .b64 map) {
    .reg .b64 %rd<5>; .reg .b32 %r<5>;
    .shared .align 128 .b8 tile[4096];
    mov.u32 %r1, tile; mov.u32 %r2, 0; ld.param.b64 %rd1, [map];
    cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 16;
    cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd1], [%r1], 16;
    cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {%r2, %r2}], [%r1];
    cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%rd1, {%r2, %r2}], [%r1];
    cp.async.bulk.commit_group;
    ret;
}
"""


def test_each_store_and_reduction_is_one_event_in_ptx_and_in_machine_code(tmp_path):
    cubin = tmp_path / "k.cubin"
    cubin.write_bytes(ptxas.assemble(TENSOR_STORES))
    (function,) = program.parse(nvdisasm.disassemble(cubin))
    written = [kind for kind, _ in trace.lines_of(TENSOR_STORES, function.name)]
    assert written == ["store"] * 4 + ["flush"]
    assert [k for k in map(align.token, function.instructions) if k in written] == written


def test_other_kernels_of_a_file_have_no_place_among_the_instructions_of_one():
    """Alike branches are told apart by that order."""
    other = TENSOR_STORES[TENSOR_STORES.index(".visible") :].replace(" k(", " other(")
    assert trace.lines_of(TENSOR_STORES + other, "k") == trace.lines_of(TENSOR_STORES, "k") != []


EXPONENTIALS = """
.version 9.0
.target {target}
.address_size 64
.visible .entry k(.param .u64 y) {{
    .reg .b64 %rd<5>; .reg .f32 %f<3>;
    ld.param.b64 %rd1, [y]; ld.global.f32 %f1, [%rd1];
    {body}
    st.global.f32 [%rd1], %f1;
    ret;
}}
"""


@pytest.mark.parametrize(
    "target, sms, each, note",
    [
        ("sm_100a", 148, 8, ""),
        ("sm_103a", 148, 4, "B300: clock_ghz, rate_mufu, lat_mufu, hbm_tbs are its own"),
        ("sm_110a", 20, 8, "Thor: sms are its own"),
    ],
)
def test_a_kernel_is_modelled_on_the_chip_of_its_target(target, sms, each, note):
    """32 exponentials take 32 / (rate / 4) cycles of a sub-partition; 41 CTAs, two an SM, are two waves of Thor."""
    text = EXPONENTIALS.format(target=target, body="ex2.approx.ftz.f32 %f1, %f1;" * 64)
    y = torch.zeros(1)
    kernel = ptx_files.load(text)
    (one,) = emulator.profile(lambda: kernel.launch(y, grid=41, block=1024)).kernels
    assert one.busy["mufu"] * one.turn * one.turns == pytest.approx(8 * 64 * each, rel=0.01)
    assert one.launch["ctas_per_sm"] == 2 and one.launch["waves"] == -(-41 // (2 * sms))
    assert any(note in text for text in one.notes) if note else not one.notes


LEFT_EARLY = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry k() {
    .reg .pred %p<2>; .reg .b32 %r<2>;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    mov.u32 %r1, %tid.x; setp.ge.u32 %p1, %r1, 32;
    @%p1 exit;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    ret;
}
"""


def test_a_cluster_barrier_does_not_await_warps_that_have_ended():
    kernel = ptx_files.load(LEFT_EARLY)
    found = emulator.profile(lambda: kernel.launch(grid=2, block=64, cluster=2))
    assert not found.failed and len(found.kernels) == 1


def test_a_program_without_a_kernel_says_so():
    assert str(emulator.profile(lambda: None)) == "No kernel was launched on the emulator."


def test_loops_without_synchronisation_are_counted_by_another_instruction():
    with launches.recorded() as recorded:
        exponentials(5)
    events = recorded["exponentials"].trace.warps[0, 0]
    assert [event.kind for event in events] == [*["special"] * 5 * A_TURN, "gstore"]


def test_recording_leaves_no_trace():
    """Afterwards kernels are decoded as before: their exponentials are not called one by one."""
    emulator.profile(exponentials, 3)
    exponentials(3)
    counts = emulator.last_run().opcodes
    assert counts["ex2.approx.ftz.f32"] == 3 * A_TURN


def test_the_page_has_the_numbers_and_no_end_of_its_script_inside(handed, tmp_path):
    path = tmp_path / "profile.html"
    handed[0].write_html(path)
    text = path.read_text()
    assert text.count("</script>") == 2
    (data,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', text, re.S)
    (one,) = json.loads(data)["kernels"]
    lanes = {lane["name"]: lane["segments"] for lane in one["timeline"]["lanes"]}
    assert set(lanes) == {"fill", "read"}
    for segments in lanes.values():
        ends = [(start, until) for start, until, *_ in segments]
        assert all(a[1] == b[0] for a, b in zip(ends, ends[1:], strict=False)), "without gaps"
        assert {what for _, _, kind, what, _ in segments if kind == "wait"} <= {
            "wait for full",
            "wait for empty",
        }
    assert any("mbarrier.try_wait" in line for _, line in one["timeline"]["lines"])


def test_the_command_prints_the_table_and_compares(tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys; from tests.emulator.model.kernels import exponentials; exponentials(int(sys.argv[1]))"
    )
    before, page = tmp_path / "before.json", tmp_path / "page.html"
    assert main(["profile", "--json", str(before), "--html", str(page), str(script), "8"]) == 0
    assert profile.STATED_ERROR in capsys.readouterr().out and page.is_file()
    assert main(["profile", "--against", str(before), str(script), "16"]) == 0
    said = capsys.readouterr().out
    assert "before" in said and "exponentials -> exponentials" in said
    assert re.search(r"\+\d+\.\d%  cycles of a CTA", said)


def test_the_command_says_when_there_is_nothing_to_model(tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text("")
    assert main(["profile", str(script)]) == 1
    assert "No kernel was launched" in capsys.readouterr().out


def test_programs_that_are_missing_are_named_with_the_remedy(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PTXAS", str(tmp_path / "nothing"))
    with pytest.raises(ptxas.PtxasError, match="is not a file. pip install nvidia-cuda-nvcc"):
        list(ptxas.candidates())
    found = emulator.profile(exponentials, 3)
    assert not found.kernels and "is not a file" in str(found)


def test_what_is_compiled_inside_has_the_machine_code_of_its_compiler(monkeypatch, capsys):
    """The smallest DSL kernel needs no ptxas besides. Its path is one load from global memory, as the constant says."""
    monkeypatch.setenv("PTXAS", "/nothing")
    example = str(ROOT / "examples/03_any_cute_kernel_on_the_emulator.py")
    assert main(["profile", example]) == 0
    text = capsys.readouterr().out
    latency = fitted_b200()["lat_global"].value
    assert re.search(rf" {latency:.0f} +\d+%  warps 0-3: result of global memory", text)


def test_the_graph_of_causes_changes_no_cycle(monkeypatch):
    """The same run of the machine, with a graph and without."""
    cycles = []
    run = profile.Machine.run

    def both(machine, paths, codes, trace, graph):
        cycles.append(run(machine, paths, codes, trace).cycles)
        return run(machine, paths, codes, trace, graph=graph)

    monkeypatch.setattr(profile.Machine, "run", both)
    (one,) = emulator.profile(handed_over, TURNS).kernels
    assert cycles == [one.cycles]


@pytest.mark.parametrize(
    "threads, shared, registers, ctas, limit",
    [
        (128, 1024, 32, 16, "registers"),  # 65536 / (4 warps x 1024)
        (128, 113 << 10, 32, 2, "shared memory"),  # 114 KiB with the reserved one
        (1024, 0, 16, 2, "threads"),
        (32, 0, 32, 32, "the number of CTAs"),
        (512, 227 << 10, 128, 1, "shared memory"),  # as this package's kernels
    ],
)
def test_how_many_ctas_an_sm_holds(threads, shared, registers, ctas, limit):
    found = profile.residency((148 * ctas + 1, 1, 1), (threads, 1, 1), shared, registers)
    assert found == {"ctas_per_sm": ctas, "limited_by": limit, "waves": 2}


def test_the_command_runs_launches_as_the_function_does(tmp_path, monkeypatch):
    """Unchecked, and with few claims: what use() inside of the context says would win."""
    seen = []
    monkeypatch.setattr(driver_api, "execute", lambda program, **_: seen.append(settings()))

    def settings():
        return driver_api._settings[-1].checks, driver_api._settings[-1].claims

    script = tmp_path / "script.py"
    script.write_text("from tests.emulator.model.kernels import exponentials; exponentials(1)")
    main(["profile", str(script)])
    emulator.profile(exponentials, 1)
    assert seen == [(None, 1)] * 2
