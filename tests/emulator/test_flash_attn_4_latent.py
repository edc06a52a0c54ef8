"""flash-attn-4's three kernels of latent attention beside ours, on the same numbers, and under every schedule.

    CTA pairs    head dims 64 and 512, 128 heads
    one CTA      .ws products, 128 keys at a time; 64 keys for up to 64 heads

They run on hardware in their package's tests; ours does not.
"""

import importlib.util
import warnings

import pytest
import torch

from cute_fa4 import EmulatorWarning, emulator, flash_mla_with_kvcache
from cute_fa4.emulator.as_if_cuda import as_if_cuda
from tests import pairwise
from tests.emulator import foreign_calls

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("flash_attn") is None
        or importlib.util.find_spec("flash_attn.cute") is None,
        reason="flash_attn.cute is not installed: pip install --no-deps flash-attn-4==4.0.0b36 quack-kernels",
    ),
    pytest.mark.filterwarnings("ignore"),
]

KERNELS = {"CTA pairs": (128, False), "one CTA": (128, True), "one CTA, 64 heads": (64, True)}
KEYS = 256  # two of their longer tiles; a multiple of a page below


@pytest.fixture
def theirs(monkeypatch):
    """theirs(name) -> (out, exact, q, rows) of a kernel."""
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_100a")

    def call(name):
        heads, one_cta = KERNELS[name]
        monkeypatch.setenv("FLASH_ATTENTION_MLA_1CTA", str(int(one_cta)))
        with as_if_cuda():
            return foreign_calls.latent(heads, one_cta, keys=KEYS)

    return call


def error(out, exact):
    return ((out.double() - exact).norm() / exact.norm()).item()


def rounded_once(q, rows, shift):
    """The error of attention in float64 whose powers, 2**shift times too large, and whose out are rounded to bfloat16.

    A row's largest power is 1 and exact where the row refers to its maximum. Both packages keep an earlier reference
    that is near enough: then it is any number, and the error that of log-uniform mantissas.
    """
    keys = rows[0, :, 0].double()
    scores = torch.einsum("bqhd,kd->bhqk", q.double(), keys) * q.shape[-1] ** -0.5
    powers = (scores - scores.amax(-1, keepdim=True)).exp() * 2**shift
    product = lambda p: torch.einsum("bhqk,kd->bqhd", p, keys[:, : foreign_calls.LATENT])
    total = powers.sum(-1).transpose(1, 2)[..., None]
    return error((product(powers.bfloat16().double()) / total).bfloat16(), product(powers) / total)


@pairwise.sweep_only("kernels of others", seconds=30)
@pytest.mark.parametrize("name", KERNELS)
def test_both_errors_are_those_of_rounding_p_and_out_once(theirs, name):
    out, exact, q, rows = theirs(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EmulatorWarning)
        ours, _ = flash_mla_with_kvcache(
            q, rows.view(KEYS // 64, 64, 1, -1), torch.arange(KEYS // 64, dtype=torch.int32)[None],
            torch.tensor([KEYS], dtype=torch.int32),
        )  # fmt: skip
    models = [rounded_once(q, rows, shift / 8) for shift in range(8)]
    for got in (ours, out):
        assert 0.98 * min(models) <= error(got, exact) <= 1.02 * max(models)


@pairwise.sweep_only("kernels of others", seconds=30)
@pytest.mark.parametrize("name", KERNELS)
def test_every_schedule_gives_the_same_bits(theirs, name):
    first = None
    for mode, seed in (
        ("in_order", 0),
        ("together", 0),
        ("random", 1),
        ("hostile", 1),
        ("hostile", 2),
    ):
        with emulator.use(mode=mode, seed=seed, checks="hardware") as run:
            out, *_ = theirs(name)
        first = out if first is None else first
        assert torch.equal(out, first), (mode, seed)
    # Only the kernel of pairs arrives twice at the cluster's barrier before it waits.
    assert {note.check for note in run.notes} == (
        {"cluster_barrier"} if name == "CTA pairs" else set()
    )
