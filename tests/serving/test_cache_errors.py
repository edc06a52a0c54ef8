"""The table of errors in docs/serving/four_bits.md: what caches of 8 and 4 bits cost, by kinds of data.

Every number is computed anew: those of a cache in float64, that of the kernel on the emulator, that of
attention in bf16 over the cache dequantized to bf16 from its roundings.
"""

from __future__ import annotations

import statistics
import warnings
from pathlib import Path

import pytest
import torch

from benchmarks import trained_channels
from cute_fa4 import EmulatorWarning, flash_attn_func, mxfp8, nvfp4
from cute_fa4.reference import attention_float64

PAGE = Path(__file__).resolve().parents[2] / "docs" / "serving" / "four_bits.md"
KEYS, DEPTH, HEADS = 1000, trained_channels.DEPTH, trained_channels.HEADS
DRAWS = 8
TRAINED = ("trained, layer 1", "trained, layer 2")
LOUD = [3, 40, 77, 110]  # channels of k
E4M3 = torch.float8_e4m3fn


def drawn(data: str, seed: int = 0) -> tuple:
    """-> (q, k, v): one query of eight heads over one head."""
    if data in TRAINED:
        q, k, v = trained_channels.drawn(TRAINED.index(data), KEYS, seed)
        return q.bfloat16(), k, v
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(1, 1, HEADS, DEPTH, generator=generator).bfloat16()
    k, v = torch.randn(2, 1, KEYS, 1, DEPTH, generator=generator)
    if data == "loud channels":
        k[..., LOUD] *= 16
    if data == "heavy tails":  # Student's t of 3 degrees, of variance 1
        squares = torch.randn(2, 3, 1, KEYS, 1, DEPTH, generator=generator).square().sum(1)
        k, v = (x / s.sqrt() for x, s in zip((k, v), squares, strict=True))
    return q, k, v


def of_one_scale(x) -> tuple:
    scale = x.abs().amax() / 448
    return (x / scale).to(E4M3), scale


# Name in the table -> (quantize, dequantize, what the arguments of a call for its scales end with).
CACHES = {
    "e4m3, one scale": (of_one_scale, lambda x, s: x.float() * s, ("_descale",)),
    "MXFP8": (mxfp8.quantise, mxfp8.dequantise, ("_block_scale",)),
    "NVFP4": (nvfp4.quantize, nvfp4.dequantize, ("_block_scale", "_descale")),
    "NVFP4, `four_over_six=True`": (
        lambda x: nvfp4.quantize(x, four_over_six=True), nvfp4.dequantize, ("_block_scale", "_descale"),
    ),
}  # fmt: skip


def relative(found, exact) -> float:
    return ((found.double() - exact.double()).norm() / exact.double().norm()).item()


def in_bf16(q, k, v) -> torch.Tensor:
    """Attention of bf16 tensors: scores and sums in float32, P and out in bf16."""
    k, v = k.bfloat16().float(), v.bfloat16().float()
    s = torch.einsum("bqhd,bkgd->bhqk", q.float(), k) * DEPTH**-0.5
    p = torch.exp(s - s.amax(-1, keepdim=True))
    out = torch.einsum("bhqk,bkgd->bqhd", p.bfloat16().float(), v)
    return (out / p.sum(-1).transpose(1, 2)[..., None]).bfloat16()


def errors(data: str, cache: str) -> tuple[float, float, float, float]:
    """-> (of k, of out, and against attention of what the cache holds: of bf16, of the kernel)."""
    q, k, v = drawn(data)
    quantize, dequantize, names = CACHES[cache]
    stored = quantize(k), quantize(v)
    values = [dequantize(*each) for each in stored]
    exact, _ = attention_float64(q, k, v)
    held, _ = attention_float64(q, *values)
    call = {"q": q, "k": stored[0][0], "v": stored[1][0], "q_quantize": "never"}
    for tensor, each in zip("kv", stored, strict=True):
        named = (tensor + name for name in names)
        call |= dict(zip(named, each[1:], strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EmulatorWarning)
        out = flash_attn_func(**call)
    of_k = relative(values[0], k)
    return of_k, relative(held, exact), relative(in_bf16(q, *values), held), relative(out, held)


def of_draws(data: str) -> list[str]:
    """For each cache the mean and the standard deviation of the error of out over DRAWS of q, k and v, in percent."""
    found = {cache: [] for cache in CACHES}
    for seed in range(DRAWS):
        q, k, v = drawn(data, seed)
        exact, _ = attention_float64(q, k, v)
        for cache, (quantize, dequantize, _) in CACHES.items():
            held, _ = attention_float64(q, *(dequantize(*quantize(x)) for x in (k, v)))
            found[cache].append(100 * relative(held, exact))
    return [f"{statistics.mean(x):.1f} ± {statistics.stdev(x):.1f}" for x in found.values()]


def table(mark: str = "nvfp4") -> list[list[str]]:
    """The rows between the marks of the page."""
    lines = PAGE.read_text().split(f"<!-- {mark}:")[1].split(f"<!-- /{mark}")[0].splitlines()
    return [[cell.strip() for cell in x.split("|")[1:-1]] for x in lines if x.startswith("|")][2:]


DATA = ("normal", "loud channels", "heavy tails", *TRAINED)


def test_the_table_has_every_pair():
    assert [(row[0], row[1]) for row in table()] == [(d, c) for d in DATA for c in CACHES]


def test_keys_with_most_of_the_weight_are_as_many_as_the_page_says():
    """1 / sum p^2 of the eight heads, least and most."""
    for data, bounds in zip(TRAINED, ((46, 288), (3, 62)), strict=True):
        q, k, _ = (x.double() for x in drawn(data))
        p = (torch.einsum("bqhd,bkgd->hk", q, k) * DEPTH**-0.5).softmax(-1)
        keys = 1 / p.square().sum(-1)
        assert (round(keys.min().item()), round(keys.max().item())) == bounds
        assert f"{bounds[0]} to {bounds[1]}" in PAGE.read_text()


@pytest.mark.parametrize("data", DATA)
def test_the_table_of_errors_is_what_rounding_costs(data):
    for name, cache, *said in table():
        if name == data:
            found = errors(data, cache)
            for error, text in zip(found, said, strict=True):
                assert error == pytest.approx(float(text), rel=0.05), (cache, text)
            assert found[-1] <= found[-2] * 1.05  # the kernel adds no more than bf16


@pytest.mark.parametrize("data", DATA)
def test_the_table_of_draws_has_means_and_deviations(data):
    [said] = [cells for name, *cells in table("nvfp4_draws") if name == data]
    for found, text in zip(of_draws(data), said, strict=True):
        for number, rounded in zip(found.split("±"), text.split("±"), strict=True):
            assert float(number) == pytest.approx(float(rounded), rel=0.05, abs=0.11)


if __name__ == "__main__":
    for kind in DATA:
        for each in CACHES:
            numbers = " | ".join(f"{x:.2e}" for x in errors(kind, each))
            print(f"| {kind} | {each} | {numbers} |")
    for kind in DATA:
        print("| " + " | ".join([kind, *of_draws(kind)]) + " |")
