"""torch.ops.cute_fa4.block_tiles: lists of small blocks -> lists of tiles, as a tracer sees it."""

from __future__ import annotations

import torch

from cute_fa4.calls.block_lists import Lists, Side, empty_tiles
from cute_fa4.calls.operands.blocks import of_operator
from cute_fa4.calls.small_blocks import Conversion
from cute_fa4.operands import BLOCKS, NAMES
from cute_fa4.operators import sharding
from cute_fa4.operators.registration import arguments_of, defined

_SCHEMA = (
    f"block_tiles({', '.join(f'Tensor {name}' for name in NAMES[BLOCKS][:2])}, "
    f"{', '.join(f'Tensor? {name}=None' for name in (*NAMES[BLOCKS][2:], 'lengths_k'))}, *, int[] block_size, "
    "SymInt longest_q, SymInt longest_k, SymInt batch, bool hides, int tile_q, bool in_order) -> "
    "(Tensor mask_block_cnt, Tensor mask_block_idx, Tensor full_block_cnt, Tensor full_block_idx, Tensor kinds)"
)
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
_RESULTS = 5


def converted(conversion: Conversion) -> tuple:
    """Conversion.run() through the operator."""
    tensors, options = arguments_of_tiles(conversion)
    return block_tiles(*tensors, **options)


def arguments_of_tiles(conversion: Conversion) -> tuple[list, dict]:
    """The tensors of a call of the operator, and its other arguments."""
    lists, queries, keys, batch, hides, tile_q, in_order = conversion
    tensors = [*(lists.tensors[name] for name in NAMES[BLOCKS]), keys.lengths]
    options = dict(
        block_size=[lists.blocks.queries, lists.blocks.keys],
        longest_q=queries.longest,
        longest_k=keys.longest,
        batch=batch,
        hides=hides,
        tile_q=tile_q,
        in_order=in_order,
    )
    return tensors, options


def _conversion(call: dict) -> Conversion:
    """The inverse, from the arguments of the operator by name."""
    blocks = of_operator(call)
    assert blocks is not None  # a call without lists has nothing to convert
    lists = Lists({name: call[name] for name in NAMES[BLOCKS]}, blocks)
    sides = Side(call["longest_q"]), Side(call["longest_k"], call["lengths_k"])
    rest = (call[name] for name in ("batch", "hides", "tile_q", "in_order"))
    return Conversion(lists, *sides, *rest)


def _run(*given, **options):
    return _conversion(_arguments(given, options)).run()


def _fake(*given, **options):
    return empty_tiles(*_conversion(_arguments(given, options)).of_tiles)


def _batched(info, in_dims, *given, **options):
    """torch.vmap: one conversion per example, as attention with lists is one call per example."""
    examples = [
        block_tiles(
            *(
                x if dim is None else x.select(dim, i)
                for x, dim in zip(given, in_dims, strict=True)
            ),
            **options,
        )
        for i in range(info.batch_size)
    ]
    return tuple(map(torch.stack, zip(*examples, strict=True))), (0,) * _RESULTS


_library = defined(_SCHEMA, _TAGS, _run, _fake, batched=_batched)
block_tiles = torch.ops.cute_fa4.block_tiles.default
_arguments = arguments_of(block_tiles)
sharding.add_rule(block_tiles, sharding.cuts_of_nothing)
