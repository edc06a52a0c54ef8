"""`check --load` of kernels over caches with scales of blocks: each family is tried, and a wrong kernel is seen."""

import pytest

from cute_fa4.commands import trials
from cute_fa4.compiler import functions
from cute_fa4.compiler.compiler import compile_function
from cute_fa4.sm100.choose.choose_config import choose_config
from tests.ptx_variants import VARIANTS
from tests.suite import turns

# Few rows, two query tiles and wide heads, of both formats and both layouts of V's scales.
NAMES = (
    "bf16 over e2m1",
    "bf16 over mxe4m3",
    "e2m1 prefill",
    "mxe4m3 prefill",
    "e2m1 prefill, d64, interleaved",
    "e2m1 d256",
)
OUT = 3  # of the arguments of a launch


@pytest.mark.parametrize("name", turns.by_turns(NAMES))
def test_a_kernel_over_blocks_is_tried_and_a_wrong_one_is_seen(name, monkeypatch):
    """Stand-ins for the kernel: it does not write; it does, and a column of out is off."""
    monkeypatch.setattr(functions, "_functions", {})
    monkeypatch.setattr(functions, "_registered", {})
    config = choose_config(**{"qkv_dtype": "bf16", "head_dim": 128} | VARIANTS[name])
    kernel = compile_function(config, "emulator")

    def verdict(function):
        functions.clear()
        functions.register(config, "emulator", lambda: function)
        return trials.verdict(config, "cpu", "emulator")

    def changed(*given):
        kernel(*given)
        given[OUT][..., -1].add_(0.25)

    right = verdict(kernel)
    assert right.good and not right.not_tried, str(right)
    assert 0 < right.error < right.allowed
    for function in (lambda *given: None, changed):
        wrong = verdict(function)
        assert not wrong.good and "WRONG" in str(wrong), str(wrong)
