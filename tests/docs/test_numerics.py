"""The table of docs/numerics.md that compares exact with lagged references: what both kernels return."""

import functools
import math
import re
from pathlib import Path

import pytest
import torch

from cute_fa4 import flash_attn_func
from cute_fa4.calls import repeat
from cute_fa4.compiler import policy
from tests.attention.test_lagged import run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "numerics.md"
QUERIES, KEYS, DEPTH = 200, 1000, 64
AT = 700  # the key that jumps, in the sixth of eight tiles
TWO_ROUNDINGS = 2.0**-8 / (2 * math.sqrt(math.log(2)))
AT_FIRST = 60  # the one of the first tile: after the 32 that first_reference="quarter" looks at
BESIDES = 1.25  # what rescales of O may add to a call's instructions; its one work tile once more adds 0.8 to 1


def tensors(row: str):
    """q, k, v of a row of the table. Channel 0 of q is 4 and adds what the row says, in nats, to a key's scores."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, n, 1, DEPTH, generator=generator) for n in (QUERIES, KEYS, KEYS))
    if row == "five times as wide":
        q = 5 * q
    nats, tile = torch.zeros(KEYS), torch.arange(KEYS) // 128
    if jump := re.match(r"one key (of the first tile )?(\d+) nats above", row):
        nats[AT_FIRST if jump[1] else AT] = float(jump[2])
    if steps := re.match(r"(\d+) nats (more|less) in each tile", row):
        nats = float(steps[1]) * tile * (1 if steps[2] == "more" else -1)
    if row != "normal" and not row.startswith("five"):
        q[..., 0], k[0, :, 0, 0] = 4.0, nats * DEPTH**0.5 / 4
    return q.bfloat16(), k.bfloat16(), v.bfloat16()


def relative_error(out, q, k, v) -> float:
    q, k, v = (x[0, :, 0].double() for x in (q, k, v))
    exact = torch.softmax(q @ k.T / math.sqrt(DEPTH), 1) @ v
    return float((out[0, :, 0].double() - exact).norm() / exact.norm())


SMALLEST = 1e-12  # float64's own roundings, which differ from one CPU to the next, lie below


def in_words(error: float) -> str:
    """As the page writes it.

    >>> in_words(0.0), in_words(1.67e-14), in_words(2.29e-3)
    ('0.00e+00', '< 1e-12', '2.29e-3')
    """
    return "< 1e-12" if 0 < error < SMALLEST else f"{error:.2e}".replace("e-0", "e-")


def cells(row: str, monkeypatch) -> tuple[str, str, str]:
    """(exact, lagged, run again), as the page writes them."""
    qkv = tensors(row)
    found = []
    for maximum in ("exact", "auto"):
        monkeypatch.setenv(policy.MAXIMUM_VARIABLE, maximum)
        out, instructions = called(qkv)
        found.append(in_words(relative_error(out, *qkv)))
    return *found, "yes" if instructions > BESIDES * usual() else "no"


def called(qkv) -> tuple[torch.Tensor, int]:
    """(out, executed warp instructions)."""
    repeat.clear()
    return run(lambda: flash_attn_func(*qkv), checks=None)


@functools.cache
def usual() -> int:
    """Executed instructions of lagged maxima where nothing jumps."""
    return called(tensors("normal"))[1]


def rows() -> dict[str, list[str]]:
    table = PAGE.read_text().partition("<!-- lagged -->")[2].partition("<!-- /lagged -->")[0]
    lines = [[c.strip() for c in line.strip("|").split("|")] for line in table.splitlines()]
    return {c[0]: c[1:] for c in lines if len(c) == 4 and not c[0].startswith(("scores", "-"))}


@pytest.mark.parametrize("row", list(rows()))
def test_the_columns_are_what_the_kernels_return(row, monkeypatch):
    assert cells(row, monkeypatch) == tuple(rows()[row])


def test_the_lagged_columns_are_as_good():
    """No row is worse than the exact one by more than what rounding P and out to bf16 is worth.

    An error of up to 2^-8 / m, uniform, of a number of mantissa m: 2^-8 / sqrt(3 m^2). Weights of mantissas anywhere
    between 1 and 2 have the mean 3 / (8 ln 2) of 1 / m^2, and there are two roundings: together 2^-8 / (2 sqrt(ln 2)).
    (Under the exact maximum the largest weights lie below 1, where the mantissa is largest.)
    """
    found = rows()
    assert len(found) >= 8
    for row, (exact, lagged, _) in found.items():
        exact, lagged = (float(error.removeprefix("< ")) for error in (exact, lagged))
        assert lagged <= max(1.05 * exact, TWO_ROUNDINGS), row
