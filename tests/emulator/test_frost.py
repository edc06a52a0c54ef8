"""No false alarm: cuDNN's open kernels (FROST) pass level "hardware", right against float64.

They have been published with their speeds on GB200 and GB300. They hand tensor memory on by relaxed arrivals
(docs/decisions/0045), and read the words of a response of try_cancel themselves.
"""

import importlib.util

import pytest
import torch

from cute_fa4 import emulator
from cute_fa4.emulator.as_if_cuda import as_if_cuda
from tests.emulator import foreign_calls

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("cudnn") is None,
        reason="cudnn is not installed: pip install --no-deps 'nvidia-cudnn-frontend>=1.32,<1.33'",
    ),
    # The package's warnings about its stage cannot be fixed here.
    pytest.mark.filterwarnings("ignore"),
]

# (causal, head dims of QK and of V, rows, keys, heads of Q and of K); all on pairs of CTAs.
CALLS = {
    "full": (False, (128, 128), 512, 256, (2, 2)),
    "causal": (True, (128, 128), 640, 640, (2, 1)),
    "192/128": (True, (192, 128), 640, 640, (2, 1)),
    "256": (True, (256, 256), 300, 300, (2, 1)),
}
SCHEDULES = [("in_order", 0), ("random", 2), ("hostile", 1)]


def run(name, mode="in_order", seed=0, **use):
    """(out, the Run) of a call, which compares itself with float64: relative error 3e-3."""
    with as_if_cuda(), emulator.use(mode=mode, seed=seed, **{"checks": "hardware"} | use) as found:
        return foreign_calls.frost(*CALLS[name])[0], found


@pytest.mark.parametrize("name", CALLS)
def test_a_kernel_of_frost_is_clean_right_and_the_same_under_several_schedules(name):
    first, ran = run(name, *SCHEDULES[0])
    assert ran.launches == 1
    checks = {note.check for note in ran.notes}
    assert "phase_passed_twice" not in checks and ("reserved_bit" in checks) == (name == "256")
    pair_mmas = sum(n for opcode, n in ran.opcodes.items() if "tcgen05.mma.cta_group::2" in opcode)
    assert pair_mmas
    for mode, seed in SCHEDULES[1:]:
        assert torch.equal(run(name, mode, seed)[0], first), (mode, seed)


def test_the_kernel_takes_work_by_launch_control():
    """One cluster does the four tiles of the grid: two of rows for each of two heads."""
    _, ran = run("causal")
    assert ran.counters["clusters cancelled"] == 3


def test_without_its_waits_the_kernel_is_refused():
    """The level is not blind: P is then not known to be complete when the other CTA's MMA reads it."""
    broken = lambda name, ptx: ptx.replace("tcgen05.wait::st.sync.aligned;", "")
    with pytest.raises(emulator.RaceError, match=r"tcgen05\.wait::st before it"):
        run("full", transform=broken)


def test_the_backward_pass_for_head_dim_128_is_clean_and_right():
    """Three kernels: sums of O dO, the five products with additions in float32, the conversion of dQ."""
    with as_if_cuda(), emulator.use(checks="hardware") as ran:
        foreign_calls.frost_backward()
    assert ran.launches == 3 and not ran.notes


def test_a_reserved_bit_of_descriptors_is_an_error_where_that_is_asked():
    with pytest.raises(emulator.EmulatorError, match="reserved bit 29 is 1"):
        run("256", checks=("hardware", "reserved_bit"))


def test_it_needs_level_hardware():
    """The first report: lane 0 in the address of tensor memory stands for the warp's own quarter."""
    with pytest.raises(emulator.TensorMemoryError, match="tensor memory lane 0"):
        run("full", checks="ptx")
