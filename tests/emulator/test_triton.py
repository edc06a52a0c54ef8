"""Programs of Triton on the emulator: arguments of every kind, tensor-core products, descriptors, timing."""

import os
import sys
import textwrap

import pytest

from cute_fa4.emulator.as_if_cuda import as_if_cuda
from cute_fa4.emulator.host import triton_driver
from tests.docs.pages import ROOT
from tests.suite import scripts

pytest.importorskip("triton", reason="Triton is not installed")

BEGIN = """
import math, torch, triton, triton.language as tl
DEVICE = triton.runtime.driver.active.get_active_torch_device()
"""
ADD = """
@triton.jit
def add(x, y, out, n, factor, half, pair, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(x + at, mask=at < n) + factor * tl.load(y + at, mask=at < n)
    tl.store(out + at, total + half + pair[0] - pair[1], mask=at < n)

x, y = torch.rand(300, device=DEVICE), torch.rand(300, device="cuda")
out = torch.empty_like(x)
assert x.device == DEVICE == out.device and x.is_cuda
add[lambda meta: (triton.cdiv(300, meta["BLOCK"]),)](x, y, out, 300, 2.5, 1, (7, 3.0), BLOCK=128)
assert torch.allclose(out, x + 2.5 * y + 5)
"""
TIMED = (
    ADD
    + """
call = lambda: out.zero_()
assert math.isnan(triton.testing.do_bench(call)) and out.any()
assert len(triton.testing.do_bench(call, quantiles=[0.5, 0.2, 0.8])) == 3
limits = triton.runtime.driver.active.utils.get_device_properties(0)
assert limits["multiprocessor_count"] == torch.cuda.get_device_properties(0).multi_processor_count == 148
"""
)
PRODUCT = """
@triton.autotune(configs=[triton.Config({"M": 128}, num_warps=4), triton.Config({"M": 64})], key=[])
@triton.jit
def product(a, b, c, N: tl.constexpr, K: tl.constexpr, M: tl.constexpr):
    m, n, k = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    found = tl.dot(tl.load(a + m[:, None] * K + k[None, :]), tl.load(b + k[:, None] * N + n[None, :]))
    tl.store(c + m[:, None] * N + n[None, :], found)

a, b = torch.randn(256, 64, device="cuda").half(), torch.randn(64, 32, device="cuda").half()
c = torch.empty(256, 32, device="cuda")
compiled = product[lambda meta: (256 // meta["M"],)](a, b, c, 32, 64)
assert "tcgen05.mma" in compiled.asm["ptx"] and compiled.n_regs > 0
assert (c.double() - a.double() @ b.double()).abs().max() < 1e-4
"""
DESCRIPTOR = """
from triton.tools.tensor_descriptor import TensorDescriptor

@triton.jit
def copy(source, target, ROWS: tl.constexpr):
    at = tl.program_id(0) * ROWS
    target.store([at, 0], source.load([at, 0]))

x, y = torch.randn(64, 64, device="cuda").half(), torch.zeros(64, 64, device="cuda").half()
copy[(2,)](TensorDescriptor.from_tensor(x, [32, 64]), TensorDescriptor.from_tensor(y, [32, 64]), 32)
assert torch.equal(x, y)
"""
PIPELINED = """
from cute_fa4 import emulator
from triton.tools.tensor_descriptor import TensorDescriptor

@triton.jit
def product(a, b, c, K, M: tl.constexpr, N: tl.constexpr, DEPTH: tl.constexpr):
    acc = tl.zeros((M, N), tl.float32)
    for k in range(0, K, DEPTH):
        left = a.load([0, k])
        right = b.load([0, k])
        acc = tl.dot(left, right.T, acc)
    tl.store(c + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :], acc)

a, b = torch.randn(128, 256, device="cuda").half(), torch.randn(64, 256, device="cuda").half()
c = torch.empty(128, 64, device="cuda")
with emulator.use(checks=None):  # Triton 3.9 has no proxy fence between tcgen05.alloc and the copy to its bytes
    product[(1,)](
        TensorDescriptor.from_tensor(a, [128, 64]), TensorDescriptor.from_tensor(b, [64, 64]), c, 256, 128, 64, 64
    )
assert (c.double() - a.double() @ b.double().T).abs().max() < 1e-3
"""
GLUON = """
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.blackwell import mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

@gluon.jit
def copy(source, target):
    tile = gl.allocate_shared_memory(source.dtype, source.block_type.shape, source.layout)
    landed = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(landed, count=1)
    mbarrier.expect(landed, source.block_type.nbytes)
    tma.async_load(source, [0, 0], landed, tile)
    mbarrier.wait(landed, 0)
    mbarrier.invalidate(landed)
    tma.async_store(target, [0, 0], tile)
    tma.store_wait(0)

x, y = torch.randn(64, 64, device="cuda").half(), torch.zeros(64, 64, device="cuda").half()
layout = gl.NVMMASharedLayout.get_default_for([64, 64], gl.float16)
copy[(1,)](*(TensorDescriptor.from_tensor(z, [64, 64], layout) for z in (x, y)))
assert torch.equal(x, y)
"""


def ran(program, folder, *options):
    """`run` of a program, with its own cache."""
    return command("run", program, folder, *options)


def command(name, program, folder, *options):
    """A command of the emulator with a program, which has its own cache."""
    path = folder / "program.py"
    path.write_text(BEGIN + textwrap.dedent(program))
    environment = {**os.environ, "TRITON_CACHE_DIR": str(folder / "cache")}
    return scripts.run(
        "-m", "cute_fa4.emulator", name, *options, str(path), cwd=ROOT, env=environment
    )


@pytest.mark.parametrize("program", [ADD, TIMED], ids=["add", "timed"])
def test_a_program_of_triton_runs_as_it_is(program, tmp_path):
    done = ran(program, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "emulator: 1 launches" in done.stderr and "level hardware" in done.stderr


@pytest.mark.parametrize("program", [PRODUCT, DESCRIPTOR], ids=["product", "descriptor"])
def test_kernels_with_mbarriers_run_and_lack_a_fence(program, tmp_path):
    """Triton 3.9 has no fence between the initialisation of an mbarrier and a copy or commit that uses it: a note."""
    done = ran(program, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "level hardware" in done.stderr
    [note] = [line for line in done.stderr.split("\n") if line.startswith("note: ")]
    assert "fence.mbarrier_init (or fence.proxy.async) is missing after mbarrier.init" in note


@pytest.mark.parametrize(
    "program, seen",
    [
        (PIPELINED, ("acc = left right", "load left", "load right", "left+right.full[1]", "acc.done[1]")),
        (GLUON, ("load tile", "landed")),
    ],
    ids=["pipelined", "gluon"],
)  # fmt: skip
def test_memory_has_the_names_of_the_python_variables(program, seen, tmp_path):
    """What copies write, what MMAs read and write, and what is waited for, in a trace."""
    done = command("trace", program, tmp_path, "--text", "--as-if-cuda")
    assert "Traceback" not in done.stderr, done.stderr
    assert not [text for text in seen if text not in done.stdout], done.stdout
    assert "shared 0x" not in done.stdout and "mbarrier at" not in done.stdout


def test_the_driver_is_active_inside_only():
    import triton

    before, bench = triton.runtime.driver._active, triton.testing.do_bench
    with as_if_cuda():
        assert triton.runtime.driver.active.get_current_target().arch == 100
    assert triton.runtime.driver._active is before and triton.testing.do_bench is bench
    assert not any(isinstance(finder, triton_driver._AfterImport) for finder in sys.meta_path)
