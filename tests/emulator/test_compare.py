"""emulator.compare: a right kernel has no findings; a race, a hang and a function that changes are told apart."""

import cutlass
import cutlass.cute as cute
import pytest
import torch
from cutlass.cute.runtime import make_fake_compact_tensor

from cute_fa4 import emulator

BLOCK = 64  # two warps: the fewest between which an order can be missing


class ReverseBlock:
    """y[i] = x[63 - i] through shared memory; without `sync` nothing orders the two accesses."""

    def __init__(self, sync=True, hang=False):
        self.sync, self.hang = sync, hang

    @cute.jit
    def __call__(self, x: cute.Tensor, y: cute.Tensor):
        self.kernel(x, y).launch(grid=[1, 1, 1], block=[BLOCK, 1, 1])

    @cute.kernel
    def kernel(self, x: cute.Tensor, y: cute.Tensor):
        thread, _, _ = cute.arch.thread_idx()
        tile = cutlass.memory.SmemAllocator().allocate_tensor(
            cutlass.Float32, cute.make_layout(BLOCK), byte_alignment=16
        )
        for turn in cutlass.range_constexpr(2):
            tile[thread] = x[thread] + turn
            if cutlass.const_expr(self.hang):
                if thread < 32:
                    cute.arch.barrier(barrier_id=1, number_of_threads=BLOCK)
            if cutlass.const_expr(self.sync):
                cute.arch.sync_threads()
            y[thread] = tile[BLOCK - 1 - thread]
            if cutlass.const_expr(self.sync):
                cute.arch.sync_threads()


def compiled(**options):
    return emulator.compile(
        ReverseBlock(**options),
        *(make_fake_compact_tensor(cutlass.Float32, (BLOCK,), assumed_align=16) for _ in "xy"),
    )


def caller(function):
    def run():
        x, y = torch.arange(BLOCK, dtype=torch.float32), torch.zeros(BLOCK)
        function(x, y)
        return {"y": y}

    return run


def test_a_kernel_with_barriers_has_no_findings():
    found = emulator.compare(caller(compiled()), seeds=3)
    # in_order once, random and hostile three times each.
    assert not found.findings and len(found.schedules) == 7
    assert str(found) == "7 schedules at level hardware, no finding"
    assert torch.equal(found.results["y"], torch.arange(BLOCK - 1, -1, -1).float() + 1)


def test_a_missing_barrier_is_a_race_with_both_accesses_and_a_schedule_that_shows_it():
    function = compiled(sync=False)
    found = emulator.compare(caller(function), seeds=2, checks="hardware")
    finding = found.findings[0]
    assert finding.kind == "race" and finding.error in ("RaceError", "UninitializedRead")
    assert "test_compare.py" in finding.message and "race" in str(found)
    schedule = finding.schedules[0]
    with (
        emulator.use(mode=schedule.mode, seed=schedule.seed, checks="hardware"),
        pytest.raises(emulator.EmulatorError),
    ):
        caller(function)()


def test_without_checks_a_race_shows_as_different_results():
    """The second number of a slot is stored before or after the partner reads the first."""
    racy = lambda name, ptx: ptx.replace("bar.sync", "// bar.sync")
    found = emulator.compare(caller(compiled()), seeds=6, checks=None, transform=racy)
    assert {finding.kind for finding in found.findings} & {"difference", "race"}
    assert "under" in str(found)


def test_a_barrier_that_half_of_the_threads_reach_is_a_hang():
    found = emulator.compare(caller(compiled(hang=True)), seeds=1)
    assert [finding.kind for finding in found.findings] == ["hang"]
    assert found.findings[0].schedules == found.schedules
    assert found.results is None


def test_a_function_whose_inputs_change_is_told_so():
    """A random tensor as input: the second call differs, whatever the schedule."""
    found = emulator.compare(lambda: torch.rand(4), modes=["in_order"])
    assert [finding.kind for finding in found.findings] == ["function"]


def test_results_are_compared_as_bits():
    """A NaN equals itself; -0.0 and 0.0 differ."""
    calls = iter([0.0, 0.0, -0.0])
    found = emulator.compare(
        lambda: torch.tensor([next(calls)]), seeds=1, modes=["in_order", "random"]
    )
    assert (
        "1 of 1 values differ, the first at (0,): -0.0 instead of 0.0" in found.findings[0].message
    )
    nan = lambda: (torch.tensor([float("nan")], dtype=torch.bfloat16), None)
    assert not emulator.compare(nan, seeds=1).findings


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ValueError, match="return the tensors"):
        emulator.compare(lambda: None, seeds=1)
    with pytest.raises(
        ValueError, match="accepted are some of in_order, together, random, hostile"
    ):
        emulator.compare(lambda: 1, modes=["fast"])
    with pytest.raises(ZeroDivisionError):  # not the emulator's: the user's own mistake
        emulator.compare(lambda: 1 / 0)
