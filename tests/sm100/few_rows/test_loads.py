"""K of a CTA's first key tile is loaded before the work tile is announced, and Q after it (few_rows/loads.py).

    first work tile     K | announce | Q V | K V ...        started
    further ones        announce | K Q V | K V ...          none started; nor where the first one has no keys

One CTA claims the sequences in order: the first has no keys, one key tile or three.
"""

import cutlass.cute as cute
import pytest
from cutlass import Boolean

from cute_fa4 import compile_cache, emulator
from cute_fa4.sm100.few_rows.loads import EarlyOrder
from cute_fa4.sm100.operands.kv_buffer import KVBuffer, KVBufferConfig
from cute_fa4.sm100.steps import loads
from tests.emulator.mutations.attention_places import arrival, expect
from tests.emulator.mutations.quick import OF_SOURCES, quick_or_sweep
from tests.serving.batches import Batch, assert_agrees, dense_q, paged_kv, run
from tests.sm100.few_rows.defects import CONFIG

pytestmark = pytest.mark.filterwarnings("ignore::cute_fa4.EmulatorWarning")

KEYS = ([0, 40, 300], [300, 0, 40])


def causal(p, j):
    return j <= p


def check(mode="in_order"):
    """Against float64."""
    for keys in KEYS:
        batch = Batch.draw([1] * len(keys), keys, heads=(8, 1), depth=128)
        out, lse = run(dense_q(batch), paged_kv(batch, 16), causal=True, num_splits=1, mode=mode)
        assert_agrees(batch, out, lse, visible=causal)


def test_k_is_ahead_of_the_announcement_and_q_and_v_after():
    """In the text of the load warp: K is copied at two places, of a first key tile and of any other."""
    text = compile_cache.function_for(CONFIG, "emulator").__ptx__.split("\n")
    first_k, k, v = expect("kv_full").find(text)
    announced, _ = arrival("load", "work_ready").find(text)
    assert first_k < announced < k < expect("q_full[0]").find_one(text) < v


@pytest.mark.parametrize("mode", ["in_order", pytest.param("hostile", marks=pytest.mark.sweep)])
def test_the_first_work_tile_starts_k_where_it_has_keys(mode):
    check(mode)


@cute.jit
def always(cfg, warp, work, entries, at):
    """start, which does not look whether there are keys."""
    k = KVBuffer(KVBufferConfig.for_k(cfg), warp.smem.kv_address, warp.args.k)
    of_k, _ = loads.find_rows(cfg, warp.args, work, work.tiles.first, entries)
    return loads.load_k(cfg, k, warp.kv, work, at, of_k, fresh=True), Boolean(True)


DEFECTS = {
    "K is started where there are no keys": ("start", staticmethod(always)),
    "every K is taken for one that was started": (
        "after_tile",
        lambda self, entries: Boolean(True),
    ),
    "no K is taken for one that was started": (
        "further_arguments",
        lambda self, started: (Boolean(False),),
    ),
}


@pytest.mark.parametrize("name", quick_or_sweep(DEFECTS, OF_SOURCES))
def test_a_mistake_is_noticed(own_kernels, monkeypatch, name):
    monkeypatch.setattr(EarlyOrder, *DEFECTS[name])
    with pytest.raises((AssertionError, emulator.EmulatorError)):
        check()
