"""configs_for_model(calls=["ranks"]): what calls on several ranks launch is in the list, so nothing is compiled there.

Nothing is compiled here either: the calls ask for kernels and get functions that do nothing.
"""

import torch

from cute_fa4.aot import configs_for_model
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


def test_what_calls_on_ranks_launch_is_in_the_list_of_a_model(pool):
    model = dict(head_dim=64, heads_q=4, heads_kv=2, page_sizes=(16,), windows=(None, (100, 0)))
    listed = set(configs_for_model(**model, calls=("ranks",)))
    # all_to_all on two ranks gives each two query heads of one key/value head: the same group.
    for asked in pool.run(cases.launched, (calls(),), 2):
        assert not hasattr(asked, "trace"), asked.trace
        assert len(asked) > 10
        missing = [config.name for config in asked - listed]
        assert not missing, missing
