"""Coverage: counted per kernel and line, and complete for the attention kernel."""

import numpy as np
import pytest
import torch

from cute_fa4 import emulator, flash_attn_func
from cute_fa4.calls import repeat
from cute_fa4.emulator.reports import coverage
from tests.emulator.core.ptx_bench import run_ptx, store

BRANCHY = """
    mov.u32 %r1, %laneid;
    setp.gt.u32 %p1, %r1, {limit};
    @%p1 bra big;
    mov.u32 %r2, 1;
    membar.cta;
    bra done;
    big:
    mov.u32 %r2, 2;
    membar.gl;
    done:
""" + store("%r2").replace("{", "{{").replace("}", "}}")


def collected(*limits):
    with coverage.collect() as covered:
        for limit in limits:
            run_ptx(BRANCHY.format(limit=limit), np.zeros(32, np.uint32))
    return covered


def test_a_side_that_no_lane_takes_is_missed():
    (kernel,) = collected(31).kernels.values()
    assert [line.text for line in kernel.missed] == ["mov.u32 %r2, 2", "membar.gl"]
    ((first, last, number),) = kernel.missed_ranges()
    assert (last.ptx_line - first.ptx_line, number) == (1, 2)


def test_lanes_on_both_sides_cover_both():
    (kernel,) = collected(15).kernels.values()
    assert kernel.missed == [] and kernel.fraction == 1.0


def test_launches_of_one_kernel_add_up_and_edited_kernels_are_apart():
    """The limit is part of the text, so each limit is a kernel; 31 twice is one with two launches."""
    covered = collected(31, 31, 15)
    assert sorted(kernel.launches for kernel in covered.kernels.values()) == [1, 2]
    assert len(covered.by_name("bench")) == 2 and covered.by_name("other") == []


def test_the_report_names_the_lines():
    text = str(collected(31))
    assert "bench: " in text and "mov.u32 %r2, 2" in text and "in 1 launches" in text
    assert str(coverage.Coverage()) == "no kernel was launched"


# Wide scores: rows are rescaled in every tile. 300: clipped rows and keys, masked tiles. 600 queries and 100
# keys: under a causal mask a work tile without keys, and query tiles without keys.
CASES = ((256, 640, 6.0), (300, 300, 1.0), (600, 100, 1.0))

# Causal, head dim -> {Python file: why no run executes all of its lines there}.
_UNEVEN = (
    "query tile 0 keeps a key tile, so that the leader alone never starts at the first one, and a causal mask leaves "
    "it one fewer at most: further ones alone are for windows and chunks"
)
_NO_KEYS = "work tiles without keys: without a mask there are none, and no keys at all is no launch"
UNREACHABLE = {
    (False, 64): {"correction.py": _NO_KEYS},
    (False, 128): {"correction.py": _NO_KEYS},
    (True, 64): {"products.py": _UNEVEN},
    (True, 128): {"over.py": _UNEVEN, "products.py": _UNEVEN},
}


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_three_calls_execute_every_line_of_the_attention_kernel(head_dim, causal, monkeypatch):
    # What runs a work tile again needs several of them, and scores that jump: tests/attention/test_lagged.py.
    monkeypatch.setenv("CUTE_FA4_MAXIMUM", "exact")
    repeat.clear()
    generator = torch.Generator().manual_seed(1)
    draw = lambda n: torch.randn(1, n, 1, head_dim, generator=generator)
    with coverage.collect() as covered, emulator.use(checks=None):
        for seqlen_q, seqlen_k, spread in CASES:
            q, k, v = (draw(seqlen_q) * spread, draw(seqlen_k), draw(seqlen_k))
            tensors = [x.bfloat16() for x in (q, k, v)]
            flash_attn_func(*tensors, causal=causal, return_lse=True)
    (kernel,) = covered.by_name("cute_fa4")
    missed_in = {first.source[0].rsplit("/", 1)[-1] for first, _, _ in kernel.missed_ranges()}
    assert missed_in == set(UNREACHABLE[causal, head_dim]), kernel.name + "\n" + covered.report()
