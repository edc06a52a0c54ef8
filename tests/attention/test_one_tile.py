"""The kernel of one query tile (sm100/mha1q) against float64: every number of key tiles, shared rows, schedules.

    keys     1    127    128    129    256    300    900
    tiles    1    1      1      2      2      3      8        none for a part, a turn or more for each warpgroup

The ring has five slots at head dim 128 and eleven at 64, so 900 keys are more tiles than slots.
"""

import pytest
import torch

from cute_fa4.calls import repeat
from cute_fa4.reference import allowed_error, attention_float64, max_error
from tests.attention.agreement import attention, schedules
from tests.serving.batches import Batch, assert_agrees, packed_kv, packed_q, paged_kv, run

pytestmark = pytest.mark.filterwarnings("ignore::cute_fa4.EmulatorWarning")


@pytest.fixture(autouse=True)
def rows_of_128(monkeypatch):
    """Tiles of few rows (sm100/mhaswap) would take the shortest queries."""
    monkeypatch.setenv("CUTE_FA4_SWAP", "off")
    repeat.clear()
    yield
    repeat.clear()


LENGTHS = (1, 127, 128, 129, 256, 300, 900)


def tensors(seqlen_q, seqlen_k, heads=(1, 1), depth=128, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(seqlen_q * 1000 + seqlen_k)
    draw = lambda n, h: torch.randn(1, n, h, depth, generator=generator)
    return [
        (3 * draw(seqlen_q, heads[0])).to(dtype),
        *(draw(seqlen_k, heads[1]).to(dtype) for _ in "kv"),
    ]


def assert_close_to_float64(q, k, v, out, lse, **options):
    exact, exact_lse = attention_float64(q, k, v, **options)
    allowed = allowed_error(q, k, v, **options)
    assert max_error(out, exact) <= allowed.out
    assert max_error(lse, exact_lse) <= allowed.lse


@pytest.mark.parametrize("seqlen_k", LENGTHS)
@pytest.mark.parametrize("seqlen_q", [1, 128])
def test_every_number_of_key_tiles(seqlen_q, seqlen_k):
    """Causal: of 128 queries on fewer keys the first rows see none, and of 129 keys one warpgroup sees one row's."""
    q, k, v = tensors(seqlen_q, seqlen_k)
    out, lse = attention(q, k, v, causal=True, return_lse=True)
    assert_close_to_float64(q, k, v, out, lse, causal=True)


def test_work_tiles_of_every_parity_follow_one_another():
    """A CTA takes over the whole grid: 0 to 4 key tiles, so that each warpgroup is idle in some work tiles.

    Odd and even turns change which parity a barrier has when the next work tile begins.
    """
    keys = [1, 129, 0, 300, 128, 500, 257, 0, 60, 130]
    batch = Batch.draw([5] * len(keys), keys, heads=(2, 1), depth=128)
    for storage in (packed_kv(batch), paged_kv(batch, 16)):
        out, lse = run(packed_q(batch), storage, causal=True)
        assert_agrees(batch, out, lse, visible=lambda p, j: j <= p)


@pytest.mark.parametrize("seqlen_k", [100, 600])
def test_bits_do_not_depend_on_the_schedule(seqlen_k):
    q, k, v = tensors(70, seqlen_k, heads=(3, 1))
    expected = attention(q, k, v, causal=True, return_lse=True)
    for other in schedules(4)[1:]:
        found = attention(q, k, v, causal=True, return_lse=True, schedule=other)
        assert all(map(torch.equal, found, expected)), other


@pytest.mark.parametrize("parts", [1, 3, 40, 45])
def test_parts_of_a_long_cache(parts):
    """40 key tiles, the last of 8 keys: one part, parts of 14 and 13 tiles, of one tile each, and five of none.

    Eight heads of one query share the tile; a sink counts in the first part alone, and in its even tiles.
    """
    q, k, v = tensors(1, 5000, heads=(8, 1))
    sink = torch.linspace(-2, 2, 8)
    batch = Batch([q[0]], [k[0]], [v[0]])
    out, lse = run(
        packed_q(batch), paged_kv(batch, 64), causal=True, learnable_sink=sink, num_splits=parts
    )
    assert_agrees(batch, out, lse, visible=lambda p, j: j <= p, sink=sink)
