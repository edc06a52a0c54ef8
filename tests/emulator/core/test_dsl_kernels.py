"""Small CuTe DSL kernels, compiled by the real compiler and run on the emulator through TVM-FFI."""

import cutlass
import cutlass.cute as cute
import pytest
import torch
from cutlass.cute.runtime import make_fake_compact_tensor

from cute_fa4 import emulator

BLOCK = 64  # two warps


def vector(dtype=cutlass.Float32, divisibility=BLOCK):
    """A fake 1-d tensor of symbolic size."""
    size = cute.sym_int(divisibility=divisibility)
    return make_fake_compact_tensor(dtype, (size,), assumed_align=16)


@cute.kernel
def scale_kernel(x: cute.Tensor, y: cute.Tensor, factor: cutlass.Float32):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    i = block * BLOCK + thread
    y[i] = factor * x[i]


@cute.jit
def scale(x: cute.Tensor, y: cute.Tensor, factor: cutlass.Float32):
    scale_kernel(x, y, factor).launch(grid=[cute.size(x) // BLOCK, 1, 1], block=[BLOCK, 1, 1])


@pytest.fixture(scope="module")
def compiled_scale():
    return emulator.compile(scale, vector(), vector(), cutlass.Float32(0))


def test_copy_with_a_scalar_argument(compiled_scale):
    """Three blocks: the grid size is computed by the compiled host code from the tensor's shape."""
    x, y = torch.randn(3 * BLOCK), torch.empty(3 * BLOCK)
    compiled_scale(x, y, 3.0)
    assert torch.equal(y, 3 * x)
    run = emulator.last_run()
    assert run.launches == 1
    assert run.opcodes["st.global.b32"] == 3 * BLOCK // 32
    assert run.instructions == sum(run.opcodes.values())


def test_use_counts_the_launches_inside_of_it(compiled_scale):
    x, y = torch.randn(BLOCK), torch.empty(BLOCK)
    with emulator.use(mode="random", seed=1) as run:
        compiled_scale(x, y, 1.0)
        compiled_scale(x, y, 2.0)
    assert run.launches == 2
    compiled_scale(x, y, 1.0)
    assert run.launches == 2 and emulator.last_run().launches == 1


def test_transform_edits_the_kernel_that_is_executed(compiled_scale):
    """With the product replaced by a sum the result is x + 3; afterwards it is 3 x again."""
    x, y = torch.randn(BLOCK), torch.empty(BLOCK)
    seen = []

    def edit(name, ptx):
        seen.append(name)
        return ptx.replace("mul.f32", "add.f32")

    with emulator.use(transform=edit):
        compiled_scale(x, y, 3.0)
    assert torch.equal(y, x + 3) and len(seen) == 1 and "scale" in seen[0]
    compiled_scale(x, y, 3.0)
    assert torch.equal(y, 3 * x)


def test_a_tensor_may_only_be_touched_inside_of_its_bounds(compiled_scale):
    """The grid follows x, and y is one block shorter."""
    x, y = torch.randn(2 * BLOCK), torch.empty(BLOCK)
    with pytest.raises(emulator.IllegalAccess) as error:
        compiled_scale(x, y, 1.0)
    text = str(error.value)
    assert "0 bytes after the end of the tensor (64,) float32, 256 bytes" in text
    assert "CTA (1, 0, 0)" in text and "test_dsl_kernels.py:" in text, "the Python line is named"


def test_arguments_are_checked_by_the_compiled_function(compiled_scale):
    with pytest.raises((TypeError, ValueError), match="float32"):
        compiled_scale(torch.randn(BLOCK), torch.empty(BLOCK, dtype=torch.float16), 1.0)


def test_the_real_runtime_stays_bound_beside_the_emulator(compiled_scale):
    """A function compiled for CUDA in the same process still calls CUDA, which is what fails here."""
    if torch.cuda.is_available():
        pytest.skip("with a GPU the function would run on it")
    options = "--enable-tvm-ffi --gpu-arch sm_100a"
    for_cuda = cute.compile(scale, vector(), vector(), cutlass.Float32(0), options=options)
    x, y = torch.randn(BLOCK), torch.zeros(BLOCK)
    with pytest.raises(RuntimeError, match="(?i)cuda"):
        for_cuda(emulator.as_cuda(x), emulator.as_cuda(y), 1.0)
    assert not y.any()
    compiled_scale(x, y, 1.0)
    assert torch.equal(x, y)


@cute.kernel
def butterfly_kernel(x: cute.Tensor, y: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    y[thread] = cute.arch.warp_reduction_sum(x[thread])


@cute.jit
def butterfly(x: cute.Tensor, y: cute.Tensor):
    butterfly_kernel(x, y).launch(grid=[1, 1, 1], block=[BLOCK, 1, 1])


def test_warp_sum_by_shuffles():
    """Small integers: the sum is exact in every order."""
    x, y = torch.arange(BLOCK, dtype=torch.float32), torch.empty(BLOCK)
    emulator.compile(butterfly, vector(), vector())(x, y)
    assert torch.equal(y, x.view(2, 32).sum(1, keepdim=True).expand(2, 32).flatten())


@cute.kernel
def divergent_kernel(x: cute.Tensor, y: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    steps = cutlass.Int32(0)
    n = x[thread]
    while n != 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
    y[thread] = steps


@cute.jit
def divergent(x: cute.Tensor, y: cute.Tensor):
    divergent_kernel(x, y).launch(grid=[1, 1, 1], block=[BLOCK, 1, 1])


def test_loops_whose_length_differs_in_every_lane():
    """Steps of the 3 n + 1 iteration for n = 1 to 64: 0 to 112 turns with a branch in each."""

    def steps(n):
        count = 0
        while n != 1:
            n, count = n // 2 if n % 2 == 0 else 3 * n + 1, count + 1
        return count

    fake = [vector(cutlass.Int32) for _ in "xy"]
    x, y = torch.arange(1, BLOCK + 1, dtype=torch.int32), torch.empty(BLOCK, dtype=torch.int32)
    emulator.compile(divergent, *fake)(x, y)
    assert y.tolist() == [steps(n) for n in range(1, BLOCK + 1)]


class PingPong:
    """Warp 0 hands ``rounds`` tiles of 32 numbers to warp 1 over one slot and two mbarriers; y = sum of them.

    wait_empty  parity of the producer's first wait: 1 passes on a fresh barrier, 0 is the classic mistake
    arrivals    arrivals per phase that the barriers are initialised with
    """

    def __init__(self, rounds, wait_empty=1, arrivals=32):
        self.rounds, self.wait_empty, self.arrivals = rounds, wait_empty, arrivals

    @cute.jit
    def __call__(self, x: cute.Tensor, y: cute.Tensor):
        self.kernel(x, y).launch(grid=[1, 1, 1], block=[64, 1, 1])

    @cute.kernel
    def kernel(self, x: cute.Tensor, y: cute.Tensor):
        thread, _, _ = cute.arch.thread_idx()
        smem = cutlass.memory.SmemAllocator()
        barriers = smem.allocate_array(cutlass.Int64, 2)
        slot = smem.allocate_tensor(cutlass.Float32, cute.make_layout(32), byte_alignment=16)
        full, empty = barriers, barriers + 1
        if thread == 0:
            cute.arch.mbarrier_init(full, self.arrivals)
            cute.arch.mbarrier_init(empty, self.arrivals)
        cute.arch.mbarrier_init_fence()
        cute.arch.barrier()
        if thread < 32:
            for i in cutlass.range(self.rounds):
                cute.arch.mbarrier_wait(empty, (i + self.wait_empty) % 2)
                slot[thread] = x[i * 32 + thread]
                cute.arch.mbarrier_arrive(full)
        else:
            total = cutlass.Float32(0)
            for i in cutlass.range(self.rounds):
                cute.arch.mbarrier_wait(full, i % 2)
                total += slot[thread - 32]
                cute.arch.mbarrier_arrive(empty)
            y[thread - 32] = total


ROUNDS = 6


def ping_pong(**mistake):
    fake = [vector(divisibility=32) for _ in "xy"]
    labels = emulator.KernelLabels(
        roles=((range(0, 1), "writer"), (range(1, 2), "reader")),
        barriers=((0, "full", "reader", "writer"), (8, "empty", "writer", "reader")),
    )
    return emulator.compile(PingPong(ROUNDS, **mistake), *fake, labels=labels)


@pytest.mark.parametrize("mode", ["in_order", "random", "hostile"])
def test_two_warps_over_mbarriers(mode):
    x = torch.arange(32.0 * ROUNDS)
    y = torch.empty(32)
    with emulator.use(mode=mode, seed=2, checks=("phase_passed_twice",)):
        ping_pong()(x, y)
    assert torch.equal(y, x.view(ROUNDS, 32).sum(0))


def test_a_wrong_first_parity_is_a_deadlock_that_explains_itself():
    with pytest.raises(emulator.Deadlock) as error:
        ping_pong(wait_empty=0)(torch.zeros(32 * ROUNDS), torch.zeros(32))
    text = str(error.value)
    assert "cycle: writer waits for reader on empty; reader waits for writer on full" in text
    assert "test_dsl_kernels.py:" in text


def test_too_small_a_count_is_an_over_arrival():
    """32 threads arrive in one instruction on a barrier of 16: on a GPU the phase would flip twice."""
    over = "full phase 0: writer arrives 32 times but only 16 of 16 arrivals are left"
    with pytest.raises(emulator.BarrierError, match=over):
        ping_pong(arrivals=16)(torch.zeros(32 * ROUNDS), torch.zeros(32))


def test_too_large_a_count_is_a_deadlock_that_says_what_is_missing():
    with pytest.raises(emulator.Deadlock, match=r"lacks 16 of 48 arrivals \(writer\)"):
        ping_pong(arrivals=48)(torch.zeros(32 * ROUNDS), torch.zeros(32))


def test_compiling_leaves_nothing_in_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    emulator.compile(scale, vector(), vector(), cutlass.Float32(0))
    assert not list(tmp_path.iterdir())


def test_an_error_inside_of_the_kernel_reaches_the_caller_as_it_is(compiled_scale):
    """The same object: not the RuntimeError that TVM-FFI makes of a failed launch."""

    def fail(name, ptx):
        raise error

    error = KeyboardInterrupt("stop")
    with emulator.use(transform=fail), pytest.raises(KeyboardInterrupt) as caught:
        compiled_scale(torch.zeros(BLOCK), torch.zeros(BLOCK), 1.0)
    assert caught.value is error
