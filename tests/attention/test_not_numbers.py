"""NaN and infinite scores reach the output and the LSE, in columns of either way to compute exponentials.

Powers on the FMA units limit their exponents, and a maximum may leave NaN out: a key of NaN must not vanish there.
"""

import pytest
import torch

from cute_fa4 import FA4Config, compile_cache, flash_attn_func
from cute_fa4.calls import repeat
from cute_fa4.compiler import policy
from cute_fa4.sm100.choose.choose_config import choose_config
from cute_fa4.sm100.instructions.exp2 import emulated_pairs
from tests.suite import turns

BN = 128
Q, K = 130, 2 * BN  # two query tiles, and a key tile that is not the first
CASES = {
    "lagged": ("bf16", 64, "auto"),
    "lagged by quarters": ("bf16", 128, "auto"),
    "exact": ("bf16", 128, "exact"),
    "fp16": ("fp16", 128, "auto"),
    "e4m3": ("e4m3", 128, "auto"),
}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "e4m3": torch.float8_e4m3fn}


def emulated_columns(config: FA4Config) -> list[int]:
    """Columns of a key tile whose powers are computed on the FMA units, wherever the first quarter stands."""
    pairs, per_64 = BN // 2, config.schedule.exp2_emulated
    both = [emulated_pairs(pairs, per_64, first) for first in (0, pairs // 4)]
    return [2 * pair for pair in sorted(both[0] & both[1])]


@pytest.fixture(autouse=True)
def chosen_anew():
    """The maximum is chosen once for calls that are alike."""
    repeat.clear()
    yield
    repeat.clear()


@pytest.mark.parametrize("case", turns.by_turns(CASES))
def test_a_key_of_nan_makes_nan(case, monkeypatch):
    """Sequence 0: no such key; 1, 2: in an emulated column of the first and of the second tile; 3: in another one.

    Columns from 32 on are not part of the first running maximum. 1 has one of them, 4 another that is not emulated; 5
    and 6 have one of the first 32, emulated where references lag, and not. 7: an infinite score in the second tile,
    which has no weight either; e4m3 has no infinity.
    """
    dtype, head_dim, maximum = CASES[case]
    monkeypatch.setenv(policy.MAXIMUM_VARIABLE, maximum)
    config = choose_config(
        qkv_dtype=dtype, head_dim=head_dim, maximum=policy.maximum(), write_lse=True
    )
    assert config.schedule.lags == case.startswith("lagged")
    columns = emulated_columns(config)
    others = [column for column in range(BN) if column not in columns and column - 1 not in columns]
    other, other_after = others[0], next(column for column in others if column >= BN // 4)
    asked = 2 * min(emulated_pairs(BN // 2, config.schedule.exp2_emulated, 0))
    assert max(other, asked) < BN // 4 <= columns[0]
    generator = torch.Generator().manual_seed(0)

    def draw(rows):
        return torch.randn(8, rows, 1, head_dim, generator=generator).to(DTYPES[dtype])

    q, k, v = draw(Q), draw(K), draw(K)
    bad = {
        1: columns[0],
        2: BN + columns[-1] + 1,
        3: BN + other,
        4: other_after,
        5: asked,
        6: other,
    }
    for sequence, key in bad.items():
        k[sequence, key] = torch.full((1, head_dim), torch.nan).to(k.dtype)
    q[7, ..., 0], k[7, bad[2], :, 0] = 1.0, torch.nan if dtype == "e4m3" else torch.inf
    called = []

    def noted(asked, executor):
        called.append(asked)
        return compile_cache.function_for(asked, executor)

    monkeypatch.setattr("cute_fa4.calls.attention.function_for", noted)
    out, lse = flash_attn_func(q, k, v, return_lse=True)
    assert [asked.schedule.maximum for asked in called] == [config.schedule.maximum]
    assert not out[0].isnan().any() and not lse[0].isnan().any()
    assert out[1:].isnan().all(dim=(1, 2, 3)).tolist() == [True] * 7
    assert lse[1:].isnan().all(dim=(1, 2)).tolist() == [True] * 7
