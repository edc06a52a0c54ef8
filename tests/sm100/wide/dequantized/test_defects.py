"""Mistakes of the warps that dequantize wide heads and RoPE columns in their slots, planted, are noticed.

The subject is that of the attention test: 300 queries in three query tiles on 310 keys, two units of K, of which one
has RoPE columns in pages, and one of V, so that slots of the ring are used again with the other parity.
"""

from dataclasses import replace

import pytest

from cute_fa4 import emulator
from cute_fa4.calls import repeat
from cute_fa4.sm100.wide import loads as wide_loads
from cute_fa4.sm100.wide.dequantized import dequantize, kernel, loads
from tests.emulator.mutations.quick import quick_or_sweep
from tests.serving.batches import assert_agrees
from tests.serving.test_k_rope import causal
from tests.sm100.steps import raw_row_defects
from tests.sm100.wide.dequantized.test_attention import with_rope

pytestmark = pytest.mark.filterwarnings("ignore::cute_fa4.EmulatorWarning")


def is_right(mode: str, seed: int) -> bool:
    repeat.clear()
    try:
        batch, results = with_rope("packed, pages of 48", mode=mode, seed=seed)
        assert_agrees(batch, *results, visible=causal)
    except (AssertionError, emulator.EmulatorError):
        return False
    return True


def of_unit(number: int, change):
    """Another format of one unit of K or V."""

    def planted(made):
        def formats(cfg):
            found = made(cfg)
            columns, *dtypes = change(found[number].columns, *found[number].dtypes)
            found[number] = replace(found[number], columns=columns, dtypes=tuple(dtypes))
            return found

        return formats

    return planted


def moved(made):
    """RoPE columns of 8 bits arrive where those of 16 bits do."""

    def in_slot(cfg, k, rope):
        found = made(cfg, k, rope)
        return replace(found, config=replace(found.config, offset=0))

    return in_slot


def reversed_units(made):
    """A full unit gets the format of RoPE columns, and these that of a full unit."""
    return lambda cfg, smem, events, kv, at, thread, formats: made(
        cfg, smem, events, kv, at, thread, formats[::-1]
    )


DEFECTS = raw_row_defects.of_slots(dequantize) | {
    "V in the dtype of K": (dequantize, "v_formats", of_unit(0, lambda n, of, _: (n, of, "bf16"))),
    "K in the dtype of V": (dequantize, "k_formats", of_unit(0, lambda n, of, _: (n, of, "fp16"))),
    "RoPE columns of another dtype": (
        dequantize, "k_formats", of_unit(-1, lambda n, _, to: (n, "e5m2", to)),
    ),
    "RoPE columns passed on as they are": (
        dequantize, "k_formats", of_unit(-1, lambda n, _, to: (n, to, to)),
    ),
    "RoPE columns among those of 16 bits": (loads, "in_slot", moved),
    "half of the columns of K": (dequantize, "k_formats", of_unit(0, lambda n, *of: (n // 2, *of))),
    "half of the columns of V": (dequantize, "v_formats", of_unit(0, lambda n, *of: (n // 2, *of))),
    "units of K in another order": (dequantize, "dequantize_units", reversed_units),
    "columns of the next unit": (loads, "k_unit", lambda made: lambda cfg, k, unit: made(cfg, k, unit + 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", quick_or_sweep(DEFECTS, raw_row_defects.QUICK))
def test_a_mistake_is_noticed(own_kernels, monkeypatch, name):
    raw_row_defects.is_noticed(monkeypatch, DEFECTS[name], name, is_right)


def is_right_of_4_bits(mode: str, seed: int) -> bool:
    """Three key tiles of two units of K and of V each."""
    return raw_row_defects.is_right_over_blocks(300, 2, {"k": 256, "v": 192}, mode, seed)


def of_other_keys(made):
    """A thread takes the scales of its keys in the other order."""
    return lambda cfg, of_units, words: made(cfg, of_units, words[::-1])


DEFECTS_OF_4_BITS = raw_row_defects.of_blocks() | {
    "the scales of the thread's other key": (dequantize, "with_scales", of_other_keys),
    "every unit has the scales of the first": (dequantize, "first_block", lambda made: lambda cfg, unit: 0),
    "V has the scales of K": (dequantize, "scales_of_v", lambda made: dequantize.scales_of_k),
    "units begin twice as far in a row": (
        wide_loads, "k_unit", lambda made: lambda cfg, k, unit: made(cfg, k, 2 * unit),
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "name", quick_or_sweep(DEFECTS_OF_4_BITS, ("every unit has the scales of the first",))
)
def test_a_mistake_with_scales_of_blocks_is_noticed(own_kernels, monkeypatch, name):
    raw_row_defects.is_noticed(monkeypatch, DEFECTS_OF_4_BITS[name], name, is_right_of_4_bits)


def test_the_list_names_what_there_is():
    assert is_right_of_4_bits("hostile", 1)
    assert len(DEFECTS) == 19 and len(DEFECTS_OF_4_BITS) == 9
    assert kernel.KERNEL.__name__ == "SM100MHAWideWiden"
