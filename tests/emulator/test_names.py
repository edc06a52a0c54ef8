"""Names without a label: of a CuTe DSL program, of PTX symbols, of branches in CUDA C++. They reach every report."""

import functools
import json
import re
import shutil
import types

import pytest
import torch

from cute_fa4 import emulator
from cute_fa4.emulator import KernelLabels, ptx_files
from cute_fa4.emulator.host import driver_api
from cute_fa4.emulator.machine.observer import Observer, observing
from cute_fa4.emulator.model import nvdisasm
from cute_fa4.emulator.ptx import source_names
from cute_fa4.emulator.reports import trace, trace_page
from tests.emulator import pipelined_gemm

STAGES = pipelined_gemm.STAGES
ROLES = dict.fromkeys(range(4), "epilogue") | {4: "mma", 5: "load"}
BARRIERS = {f"ab.{end}[{i}]" for end in ("full", "empty") for i in range(STAGES)} | {
    "acc.full",
    "acc.empty",
}


class Seen(Observer):
    """Labels of the last launch; the mbarriers that it used and the roles of its warps."""

    def __init__(self):
        self.barriers, self.role_of = {}, {}

    def launch(self, machine, program):
        self.labels, self.base = machine.labels, program.kernel.dynamic_shared_offset

    def instruction(self, warp, ins):
        self.role_of[warp.index] = warp.role

    def arrive(self, barrier, count, issuer):
        self.barriers[barrier.name] = barrier.offset - self.base


def seen(labels=None):
    with observing(Seen()) as what:
        pipelined_gemm.run(labels)
    return what


@pytest.fixture(scope="module")
def gemm():
    return seen()


def test_warps_have_the_names_of_their_ids_in_the_source(gemm):
    assert gemm.role_of == ROLES


def test_mbarriers_have_the_names_of_their_pipelines_at_the_offsets_of_the_struct(gemm):
    assert set(gemm.barriers) == BARRIERS
    for i in range(STAGES):
        assert gemm.barriers[f"ab.full[{i}]"] == 8 * i
        assert gemm.barriers[f"ab.empty[{i}]"] == 8 * (STAGES + i)
    assert gemm.barriers["acc.full"] == 16 * STAGES


def test_buffers_have_the_names_of_fields_and_variables(gemm):
    a_bytes = pipelined_gemm.M * pipelined_gemm.K_TILE * 2 * STAGES
    start = {name: offset for offset, _, name in gemm.labels.shared}
    assert set(start) == {"ab_mbar_ptr", "acc_mbar_ptr", "tmem_holding_buf", "s_a", "s_b"}
    assert start["s_b"] - start["s_a"] == a_bytes and start["s_a"] % 128 == 0
    assert gemm.labels.tmem_name(5) == "accumulator[:, 5]" and gemm.labels.tmem_name(128) == ""


def test_given_names_win_and_found_names_fill_the_rest():
    given = KernelLabels(roles=((range(4, 5), "multiplier"),), barriers=((0, "first"),))
    got = seen(given)
    assert got.role_of == ROLES | {4: "multiplier"}
    assert set(got.barriers) == BARRIERS - {"ab.full[0]"} | {"first"}


def test_without_what_the_trace_knew_the_address_stays():
    """Offsets hold for the shared memory that was traced: in a launch with more they would be guesses."""
    found = KernelLabels(
        roles=((range(1), "mma"),), shared=((0, 8, "full"),), barriers=((8, "empty"),), dynamic_bytes=64
    )  # fmt: skip
    assert found.at(64) == found and found.at(80).role(0) == "mma"
    assert found.at(80).barrier(0) is None and found.at(80).shared_name(0) == ""


def test_a_deadlock_names_the_pipeline_that_lacks_bytes():
    with pytest.raises(emulator.Deadlock) as report:
        pipelined_gemm.run(forgets_to_load_b=True)
    text = str(report.value)
    assert re.search(r"warp 0-3 +epilogue +acc.full +phase 0 +lacks 1 of 1 arrivals", text)
    assert re.search(r"warp 4 +mma +ab.full\[0\] +phase 0 +lacks 16384 bytes", text)
    assert "KernelLabels" not in text, "nothing is left without a name"


def test_the_trace_and_its_page_have_the_names():
    with trace.record() as recording:
        pipelined_gemm.run()
    assert {mark.role for mark in recording.marks} >= set(ROLES.values())
    products = {mark.name for mark in recording.marks if mark.kind == "mma"}
    assert all(
        name.startswith("accumulator") and "s_a" in name and "s_b" in name for name in products
    )
    page = trace_page.page(recording)
    assert "ab.full[1]" in page and '"epilogue"' in page


def test_table_json_and_page_of_a_profile_have_the_names(tmp_path):
    try:
        nvdisasm.find()
    except nvdisasm.NvdisasmError as missing:
        pytest.skip(str(missing))
    pipelined_gemm.compiled.cache_clear()  # inside, the compiler's own ptxas runs
    found = emulator.profile(pipelined_gemm.run)
    text = str(found)
    assert "epilogue (warps 0-3): " in text and "mma waits for ab.full at " in text
    found.write_json(tmp_path / "profile.json")
    (kernel,) = json.loads((tmp_path / "profile.json").read_text())["kernels"]
    assert {role["name"] for role in kernel["roles"]} == set(ROLES.values())
    assert {wait["barrier"] for wait in kernel["waits"]} == {"ab.full", "ab.empty", "acc.full"}
    found.write_html(tmp_path / "profile.html")
    assert "wait for ab.empty" in (tmp_path / "profile.html").read_text()


def test_without_readable_source_fields_of_the_struct_remain(monkeypatch):
    """No role and no variable is known then; what the allocator says is."""
    monkeypatch.setattr(source_names, "_innermost", functools.lru_cache(lambda *_: None))
    pipelined_gemm.compiled.cache_clear()
    got = seen()
    pipelined_gemm.compiled.cache_clear()
    assert set(got.role_of.values()) == {""}
    fields = {"ab_mbar_ptr": 2 * STAGES, "acc_mbar_ptr": 2}
    assert set(got.barriers) == {f"{name}[{i}]" for name, n in fields.items() for i in range(n)}


STATIC = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 y) {
    .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %rd<4>;
    .shared .align 8 .b8 _ZZ1kPfE4full[16];
    .shared .align 16 .b8 _ZZ1kPfE4tile[64];
    mov.u32 %r1, _ZZ1kPfE4full;
    mbarrier.init.shared::cta.b64 [%r1+8], 2;
    mov.u32 %r2, _ZZ1kPfE4tile;
    BODY
    ret;
}
"""
WAIT = "L: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1+8], 0; @!%p1 bra L;"


@pytest.mark.parametrize(
    "body, error, name",
    [
        (WAIT, emulator.Deadlock, r"full\[1\] +phase 0"),
        ("ld.shared.b32 %r3, [%r2+16];", emulator.UninitializedRead, r"0x\w+ \(tile\+0x10\)"),
        ("ld.shared.b32 %r3, [%r2+2];", emulator.IllegalAccess, r"0x\w+ \(tile\+0x2\)"),
    ],
)
def test_static_variables_of_ptx_have_their_symbols_names(body, error, name):
    with pytest.raises(error, match=name):
        ptx_files.load(STATIC.replace("BODY", body)).launch(torch.zeros(1), grid=1, block=32)


CUDA = """
constexpr int LOAD_WARP = 0;
enum { kMmaWarp = 1, kOther = 7 };
__global__ void gemm(float *y) {
    int warp_id = threadIdx.x / 32;
    __shared__ alignas(8) unsigned long long full[2];
    unsigned where = (unsigned)__cvta_generic_to_shared(full + 1);
    if (threadIdx.x == 0)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 2;" :: "r"(where));
    __syncthreads();
    if (warp_id == LOAD_WARP) {
        y[threadIdx.x] = 1;
    } else if (warp_id == kMmaWarp) {
        asm volatile("{ .reg .pred p; L: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra L; }"
                     :: "r"(where));
    } else if (warp_id == unknown) {
    }
}
// if (warp_id == kOther) in a function after the kernel
"""


def test_branches_of_cuda_give_roles_where_constants_have_values(tmp_path):
    path = tmp_path / "gemm.cu"
    path.write_text(CUDA)
    sources = [None, (str(path), 5), (str(path), 15), ("/nowhere/else.cu", 3), ("kernel.py", 1)]
    assert source_names.cuda_roles(sources) == [((0,), "load"), ((1,), "mma")]


@pytest.mark.parametrize(
    "line",
    [
        "if (warp_id == NUM_WARPS - 1) {",
        "if (warp_id == lane) {",
        "if (warp_id == 3) {",
        "if (warp_id % 4 == LAST) {",
        "first(warp_id == LAST);",
    ],
)
def test_other_conditions_of_cuda_give_no_role(tmp_path, line):
    path = tmp_path / "kernel.cu"
    path.write_text(f"constexpr int NUM_WARPS = 4, LAST = 3;\nint lane = 1;\n{line}\n")
    assert source_names.cuda_roles([(str(path), 1), (str(path), 3)]) == []


PYTHON = """
def kernel(self):
    warp = make_warp_uniform(arch.warp_idx())
    other = arch.warp_idx() % 4
    if {}:
        pass
"""


@pytest.mark.parametrize(
    "condition, roles",
    [
        ("warp == LOAD", [((2,), "load")]),
        ("warp >= self.mma_warp_ids[0] and warp <= self.mma_warp_ids[-1]", [((0, 1), "mma")]),
        ("warp in (LOAD, self.mma_warp_ids)", [((2,), "load"), ((0, 1), "mma")]),
        ("LOAD != arch.warp_idx()", [((2,), "load")]),
        ("warp == i", []),
        ("warp < self.count", []),
        ("warp == self.count - 1", []),
        ("warp == unknown_warp_id", []),
        ("other == LOAD", []),
        ("warp == 0", []),
    ],
)
def test_conditions_of_python_name_what_they_compare_with(tmp_path, condition, roles):
    path = tmp_path / "kernel.py"
    path.write_text(PYTHON.format(condition))
    known = {"LOAD": 2, "i": 1, "self": types.SimpleNamespace(mma_warp_ids=(0, 1), count=4)}
    assert source_names.python_roles(str(path), 3, known.__getitem__) == roles


def test_a_kernel_by_nvcc_reports_its_roles_and_variables(tmp_path):
    if not shutil.which("nvcc"):
        pytest.skip("nvcc is not on the PATH")
    from cute_fa4.emulator import kernel_files

    path = tmp_path / "gemm.cu"
    path.write_text(CUDA.replace("else if (warp_id == unknown) {\n    }", ""))
    kernel = ptx_files.load(kernel_files.ptx_of(path))
    with pytest.raises(emulator.Deadlock, match=r"warp 1 +mma +full\[1\] +phase 0"):
        kernel.launch(torch.zeros(64), grid=1, block=64)


def test_own_kernels_keep_the_names_of_their_tables():
    """Found names come after those of compiler/labels.py, which name every warp, buffer and mbarrier."""
    from cute_fa4 import compile_cache
    from cute_fa4.compiler.labels import kernel_labels
    from cute_fa4.sm100.choose.config import FA4Config

    config = FA4Config()
    compile_cache.function_for(config, executor="emulator")
    given = kernel_labels(config)
    for library in driver_api._libraries.values():
        if library.labels == given:
            for found in library.found.values():
                joined = given.or_else(found)
                assert all(joined.role(w) == given.role(w) for w in range(32) if given.role(w))
                assert all(joined.barrier(b[0]).name == b[1] for b in given.barriers)
            break
    else:
        pytest.fail("no library has these labels")
