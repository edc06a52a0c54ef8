"""FlopCounterMode counts a call by torch's own convention: every query of a sequence with every key of it.

The oracle is torch's formula for scaled_dot_product_attention on each sequence separately.
"""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from cute_fa4 import (
    EmulatorWarning,
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    flash_mla_with_kvcache,
)
from cute_fa4.operators import OPERATORS
from tests.aot.conftest import python
from tests.operators import problems
from tests.serving.batches import Batch, int32, packed_kv, packed_q, paged_kv
from tests.serving.test_errors import APPEND
from tests.test_interface import qkv

pytestmark = pytest.mark.filterwarnings(f"ignore::{EmulatorWarning.__module__}.EmulatorWarning")

QUERIES, KEYS = [2, 3], [20, 33]
BATCH = Batch.draw(QUERIES, KEYS)
HEADS, DEPTH = packed_q(BATCH)["q"].shape[1:]


def counted(function, *args, **kwargs) -> int:
    with FlopCounterMode(display=False) as counter:
        function(*args, **kwargs)
    return counter.get_total_flops()


def of_torch(queries: int, keys: int, heads: int, depth: int) -> int:
    """Torch's formula. Not a count of its CPU operator, for which some versions of torch have none."""
    q, k = (1, heads, queries, depth), (1, heads, keys, depth)
    return sdpa_flop_count(q, k, k)


def of_batch(queries: list, keys: list) -> int:
    return sum(of_torch(m, n, HEADS, DEPTH) for m, n in zip(queries, keys, strict=True))


def test_they_are_registered_when_torchs_module_is_imported():
    """It imports triton, so importing the package does not import it; a program may import either first."""
    last = "from torch.utils.flop_counter import flop_registry\nassert torch.ops.cute_fa4.flash_attn in flop_registry"
    for first in ("", "import torch.utils.flop_counter\n"):
        absent = "" if first else "assert 'torch.utils.flop_counter' not in sys.modules\n"
        python(
            f"import sys, torch\n{first}import cute_fa4\ncute_fa4.flash_attn_func\n{absent}{last}"
        )


@pytest.mark.parametrize(
    "options", [{}, dict(causal=True, window_size=(3, 0)), dict(return_lse=True)]
)
def test_dense(options):
    q, k, v = qkv(batch=2, seqlen_q=8, seqlen_k=24, heads_q=4, heads_kv=2)
    expected = 2 * of_torch(8, 24, 4, 64)
    assert counted(flash_attn_func, q, k, v, **options) == expected
    assert counted(flash_attn_func, q, k, v, out=torch.empty_like(q), **options) == expected


def test_packed_and_paged_sequences_count_as_long_as_they_are():
    assert counted(flash_attn_varlen_func, **packed_q(BATCH), **packed_kv(BATCH)) == of_batch(
        QUERIES, KEYS
    )
    paged = packed_q(BATCH) | paged_kv(BATCH, 16)
    assert counted(flash_attn_varlen_func, **paged, causal=True) == of_batch(QUERIES, KEYS)
    used = paged | dict(
        seqused_q=int32([1, 0]), seqused_k=int32([20, 7]), seqused_k_excludes_new=True
    )
    assert counted(flash_attn_varlen_func, **used) == of_batch([1, 0], [21, 7])


def test_latent_rows_count_as_keys_and_values():
    call = problems.latent()
    names = dict(latent_cache="k_cache", page_table="block_table", seqused_k="cache_seqlens")
    call = {names.get(name, name): value for name, value in call.items()}
    assert counted(flash_mla_with_kvcache, **call) == 2 * 16 * (20 + 30) * (576 + 512)


def test_appended_rows_are_keys():
    q, new, lengths = APPEND["q"], APPEND["k"], APPEND["cache_seqlens"].tolist()
    keys = [n + new.shape[1] for n in lengths]
    expected = sum(of_torch(q.shape[1], n, q.shape[2], q.shape[3]) for n in keys)
    assert counted(flash_attn_with_kvcache, **APPEND) == expected
    complete = APPEND | dict(k=None, v=None)
    expected = sum(of_torch(q.shape[1], n, q.shape[2], q.shape[3]) for n in lengths)
    assert counted(flash_attn_with_kvcache, **complete) == expected


def test_without_data_a_sequence_is_as_long_as_the_longest():
    call = packed_q(BATCH) | packed_kv(BATCH) | dict(max_seqlen_q=3, max_seqlen_k=33)
    with FakeTensorMode() as mode:
        fake = {
            n: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for n, v in call.items()
        }
        assert counted(flash_attn_varlen_func, **fake) == of_batch([3, 3], [33, 33])


def test_every_operator_has_a_formula():
    from torch.utils.flop_counter import flop_registry

    assert all(operator.overloadpacket in flop_registry for operator in OPERATORS.values())
