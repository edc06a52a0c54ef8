"""sm_103a: the row maximum of a whole key tile comes with the load of its scores (tcgen05.ld.red).

Calls on the CPU ask the emulator for code of a B200; here for that of a B300, which it executes as well.
"""

import pytest
import torch

from cute_fa4 import emulator, flash_attn_func
from cute_fa4.calls import repeat
from cute_fa4.compiler import functions
from cute_fa4.sm100.roles import key_tile
from cute_fa4.system import devices
from tests.attention.agreement import Schedule, assert_agrees
from tests.cases import Case

# Two whole key tiles before the masked one, so that maxima move from load to load, and rows whose maximum rises.
CASE = Case(seqlen_q=130, seqlen_k=300, values="rising_maximum")
LOADS = 4  # of 32 columns


@pytest.fixture
def b300(monkeypatch):
    monkeypatch.setattr(devices, "EMULATED_ARCH", "sm_103a")
    repeat.clear()
    yield
    repeat.clear()


def test_it_agrees_with_float64_and_four_loads_of_a_tile_reduce(b300):
    assert_agrees(CASE, schedule=Schedule("hostile"))
    opcodes = emulator.last_run().opcodes
    reducing = "tcgen05.ld.red.sync.aligned.32x32b.x32.max.NaN.f32"
    plain = "tcgen05.ld.sync.aligned.32x32b.x32.b32"
    warps = 2 * 4  # of two query tiles
    assert (opcodes[reducing], opcodes[plain]) == (2 * LOADS * warps, LOADS * warps)


@pytest.mark.sweep
@pytest.mark.parametrize("head_dim", [64, 128])
def test_the_bits_are_those_of_maxima_in_registers(b300, own_kernels, monkeypatch, head_dim):
    q, k, v = Case(seqlen_q=130, seqlen_k=300, head_dim=head_dim).tensors()
    found = flash_attn_func(q, k, v, return_lse=True)
    monkeypatch.setattr(key_tile, "maximum_comes_with_load", lambda cfg: False)
    functions.clear()
    repeat.clear()
    for ours, theirs in zip(found, flash_attn_func(q, k, v, return_lse=True), strict=True):
        assert torch.equal(ours, theirs)
