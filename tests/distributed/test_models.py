"""configs_for_model(calls=["ranks"]): what calls on several ranks launch is in the list, so nothing is compiled there.

Nothing is compiled here either: the calls ask for kernels and get functions that do nothing.
"""

import torch

from cute_fa4.aot import configs_for_model
from cute_fa4.sm100.backward.config import BackwardConfig
from tests.distributed import cases

BF16 = torch.bfloat16
LONG, SHORT = (1, 2048, 4, 64), (1, 16, 4, 64)
WINDOW = {"causal": True, "window_size": (100, 0), "order": "contiguous"}


def calls() -> list:
    found = []
    for shape in (LONG, SHORT):
        keys = (1, shape[1], 2, 64)
        for layout in ("ring", "all_gather", "all_to_all"):
            for options in ({"causal": True}, {}, WINDOW):
                found.append((cases.attend, (shape, keys, BF16, {"layout": layout, **options})))
            documents = {"layout": layout, "causal": True, "cu_seqlens": [0, 3, 9, 16]}
            found.append((cases.attend, (shape[1:], keys[1:], BF16, documents)))
    form = dict(queries=1, heads_q=4, heads_kv=2, rows=160, page=16)
    for heads in ("split", "all"):
        for splits in (None, 1, 3):
            for wire in (None, BF16):
                options = dict(heads=heads, num_splits=splits, wire_dtype=wire)
                found.append((cases.decode, ([5, 150], form, BF16, options)))
    return found


def training_calls() -> list:
    """Every layout, mask and form, with and without a gradient of the log-sum-exp."""
    shape, keys = (1, 96, 4, 64), (1, 96, 2, 64)
    return [
        (cases.differentiate, (*shapes, BF16, {"layout": layout, **options}, with_lse))
        for layout in ("ring", "all_gather", "all_to_all")
        for shapes, options in (
            ((shape, keys), {"causal": True}),
            ((shape, keys), {}),
            ((shape, keys), WINDOW),
            ((shape[1:], keys[1:]), {"causal": True, "cu_seqlens": [0, 3, 40, 90]}),
        )
        for with_lse in (False, True)
    ]


def test_what_calls_with_gradients_launch_is_in_the_list_of_a_model(pool):
    model = dict(head_dim=64, heads_q=4, heads_kv=2, page_sizes=(), windows=(None, (100, 0)))
    options = dict(calls=("ranks",), training=True, return_lse=(False, True))
    listed = set(configs_for_model(**model, **options))
    for asked in pool.run(cases.launched, (training_calls(),), 2):
        assert not hasattr(asked, "trace"), asked.trace
        backward = [config for config in asked if isinstance(config, BackwardConfig)]
        assert {config.packed for config in backward} == {False, True}
        assert all(config.accumulate for config in backward)
        missing = [config.name for config in asked - listed]
        assert not missing, missing


def test_what_calls_on_ranks_launch_is_in_the_list_of_a_model(pool):
    model = dict(head_dim=64, heads_q=4, heads_kv=2, page_sizes=(16,), windows=(None, (100, 0)))
    listed = set(configs_for_model(**model, calls=("ranks",)))
    # all_to_all on two ranks gives each two query heads of one key/value head: the same group.
    for asked in pool.run(cases.launched, (calls(),), 2):
        assert not hasattr(asked, "trace"), asked.trace
        assert len(asked) > 10
        missing = [config.name for config in asked - listed]
        assert not missing, missing
