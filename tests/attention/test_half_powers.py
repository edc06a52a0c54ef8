"""8-bit calls of two query tiles with exponentials in f16: errors, masked rows, infinities, NaN.

300 queries are two work tiles, the second with a single query tile; 400 keys end in a tile.
"""

import math

import pytest
import torch

from cute_fa4 import emulator, flash_attn_func
from cute_fa4.calls import repeat
from cute_fa4.compiler import policy
from cute_fa4.reference import attention_float64
from cute_fa4.sm100.choose.choose_config import choose_config
from cute_fa4.sm100.steps import half_powers
from cute_fa4.sm100.two_tiles.p_crossed import PCrossedCode
from tests.emulator.mutations.edits import with_text
from tests.emulator.mutations.quick import OF_SOURCES, quick_or_sweep
from tests.serving.batches import LSE_ERROR_OF_FP8, attention

E4M3 = torch.float8_e4m3fn
QUERIES, KEYS = 300, 400


def rows(n, seed, spread=1.0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(1, n, 1, 128, generator=generator) * spread).to(E4M3)


def error(out, q, k, v, **options):
    exact, _ = attention_float64(q.double(), k.double(), v.double(), **options)
    return float((out.double() - exact).norm() / exact.norm())


def test_the_error_in_the_norm_is_that_of_exact_powers(monkeypatch):
    """To 2 percent, the luck of other roundings, with flat, normal and peaked scores, under a mask."""
    q, k, v = rows(QUERIES, 0), rows(KEYS, 1), rows(KEYS, 2)
    errors = {}
    for asked in ("auto", "exact"):
        monkeypatch.setenv(policy.EXPONENTIAL_VARIABLE, asked)
        repeat.clear()
        errors[asked] = []
        for spread in (0.2, 1.0, 3.0):
            scale = spread * 128**-0.5
            with emulator.use(mode="hostile", seed=1):
                out = flash_attn_func(q, k, v, softmax_scale=scale, causal=True)
            errors[asked].append(error(out, q, k, v, softmax_scale=scale, causal=True))
    repeat.clear()
    pairs = list(zip(errors["auto"], errors["exact"], strict=True))
    assert all(half <= 1.02 * exact for half, exact in pairs), pairs
    assert all(half != exact for half, exact in pairs), "both are the same kernel"


def test_nan_and_rows_without_keys_stay_where_they_are():
    """A NaN in a key reaches the queries that see it, and no other; queries before the first key have no sum at all."""
    q, k, v = rows(QUERIES, 0), rows(KEYS, 1), rows(KEYS, 2)
    for key in (3, 130, 270):  # of columns that the FMA units compute, and of others
        broken = k.clone().view(torch.uint8)
        broken[:, key] = 0x7F
        out, lse = flash_attn_func(q, broken.view(E4M3), v, causal=True, return_lse=True)
        sees = torch.arange(QUERIES) + KEYS - QUERIES >= key
        assert out[0, sees].isnan().all() and not out[0, ~sees].isnan().any()
        assert (lse[0, 0].isnan() == sees).all()
    out, lse = flash_attn_func(q, k[:, :200], v[:, :200], causal=True, return_lse=True)
    assert (out[0, :100] == 0).all() and (lse[0, 0, :100] == -math.inf).all()
    assert out[0, 100:].isfinite().all() and lse[0, 0, 100:].isfinite().all()


def test_who_gets_powers_in_f16(monkeypatch):
    def schedule(**choices):
        return choose_config(**{"qkv_dtype": "e4m3", "head_dim": 128, **choices}).schedule

    assert (schedule().exponential, schedule().order) == ("half", "p_crossed_summed")
    assert (schedule(write_lse=True).exponential, schedule(write_lse=True).order) == (
        "half",
        "p_crossed",
    )
    assert (
        schedule(q_layout="packed", kv_layout="packed").order == "p_over_s"
    )  # with single-tile work
    assert schedule(arch="sm_103a").exponential == schedule(qkv_dtype="bf16").exponential == "exact"
    emulated = schedule(exponential="exact"), schedule(write_lse=True), schedule()
    assert [of.exp2_emulated for of in emulated] == [16, 32, 40]
    for word, wanted in (("auto", None), ("exact", "exact")):
        monkeypatch.setenv(policy.EXPONENTIAL_VARIABLE, word)
        assert policy.exponential() == wanted
    monkeypatch.setenv(policy.EXPONENTIAL_VARIABLE, "half")
    with pytest.raises(ValueError, match="CUTE_FA4_EXPONENTIAL='half'; accepted: auto, exact"):
        policy.exponential()


def is_right() -> bool:
    """Within the bound of docs/numerics.md, element by element: rows without keys, with few, with two tiles of them."""
    repeat.clear()
    q, k, v = rows(QUERIES, 0, spread=4.0), rows(200, 1), rows(200, 2)
    visible = torch.arange(200) <= torch.arange(QUERIES)[:, None] + 200 - QUERIES
    exact, exact_lse, allowed = attention(q[0], k[0], v[0], visible=visible)
    try:
        with emulator.use(mode="hostile", seed=1):
            out, lse = flash_attn_func(q, k, v, causal=True, return_lse=True)
    except emulator.EmulatorError:
        return False
    none = exact_lse == -math.inf
    close = ((out[0].double() - exact).abs() <= allowed).all()
    lse = lse[0].double()
    return bool(close and (lse[none] == exact_lse[none]).all()) and bool(
        ((lse - exact_lse)[~none].abs() <= LSE_ERROR_OF_FP8).all()
    )


def with_line(name: str, old: str, new: str):
    """-> (where, what, its replacement): a line of PTX changed."""
    return half_powers, name, with_text(getattr(half_powers, name), old, new, name)


made_sum, made_pack = half_powers.sum_of_halves, half_powers.pack_halves
DEFECTS = {
    "exponents are not clamped": with_line("HALF_PAIR", "rn.relu.f16x2", "rn.f16x2"),
    "bits are shifted by three": with_line("HALF_PAIR", "n, 4;", "n, 3;"),
    "both lines have the same kink": with_line(
        "HALF_PAIR", "add.u32 j, i, ", "and.b32 j, i, -1; //"
    ),
    "halves are swapped": with_line("HALF_PAIR", "n, $2, $1;", "n, $1, $2;"),
    "words are swapped": (half_powers, "pack_halves", lambda pairs: made_pack(pairs[::-1])),
    "an octave too much": (half_powers, "OFFSET", half_powers.OFFSET + 1),
    "the sum forgets a pair": (half_powers, "sum_of_halves", lambda pairs: made_sum(pairs[1:])),
    "P is stored before the other S has been read": (PCrossedCode, "may_store_p", lambda *_: None),
}


@pytest.mark.parametrize("name", quick_or_sweep(DEFECTS, OF_SOURCES))
def test_a_mistake_is_noticed(own_kernels, monkeypatch, name):
    where, what, replacement = DEFECTS[name]
    monkeypatch.setattr(where, what, replacement)
    assert not is_right(), "nothing noticed"


@pytest.mark.sweep
def test_without_a_mistake_all_is_right():
    assert is_right()
