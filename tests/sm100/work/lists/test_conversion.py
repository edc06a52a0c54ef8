"""The kernels that convert lists of blocks, against plain loops: no operation of torch but the memory of results."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cute_fa4 import emulator
from cute_fa4.calls import block_lists
from cute_fa4.calls.block_lists import Lists, Side
from cute_fa4.calls.small_blocks import Conversion
from cute_fa4.operators.tiles import arguments_of_tiles
from cute_fa4.system.devices import asked_for
from tests.attention.listed import ABSENT, FULL, PARTIAL, SMALL, numbers
from tests.sm100.work.lists.conversions import converted, drawn, in_order, is_right
from tests.suite import turns


@pytest.mark.parametrize("size", turns.by_turns(SMALL))
@pytest.mark.parametrize("hides", (True, False))
def test_tiles_and_units_are_those_of_the_blocks(size, hides):
    """Ragged last tiles and blocks on both sides; a list backwards is the same list."""
    call = drawn((300, 300), SMALL[size])
    assert is_right(call, hides=hides)
    assert is_right(call, call.lists(backwards=True), hides)


@pytest.mark.parametrize("size", ((16, 16), (48, 80)))
@pytest.mark.parametrize("hides", (True, False))
def test_tiles_of_batch_invariant_calls_are_partial_and_ascend(size, hides):
    """Of 256 queries: up to sixteen blocks of queries."""
    assert is_right(drawn((300, 300), size), hides=hides, ascends=True)


@pytest.mark.parametrize("size", ((128, 80), (48, 384)))
def test_more_tiles_than_a_cta_has_threads_take_several_passes(size):
    """139 tiles of keys. A block lies on both sides of the 128th tile's end."""
    call = drawn((130, 17700), size, heads=1)
    call.kinds[..., 16384 // size[1]] = PARTIAL
    assert is_right(call)


def test_packed_lists_are_those_of_their_sequences():
    """Blocks beyond a sequence are absent; lists of sequences without keys, or without queries, are empty."""
    lengths = ((260, 300), (0, 200), (130, 129), (5, 0))
    call = drawn((260, 300), (48, 80), lengths=lengths)
    lists = call.packed_lists()
    for b, (m, n) in enumerate(zip(call.blocks_of(0), call.blocks_of(1), strict=True)):
        call.kinds[b, :, m:], call.kinds[b, :, :, n:] = ABSENT, ABSENT
    found = converted(call, lists)
    whole = converted(call, call.lists())
    for b, (queries, _) in enumerate(lengths):
        rows = -(-queries // 128)
        assert all(
            x[b, :, :rows].equal(y[b, :, :rows]) for x, y in zip(found[:4], whole, strict=False)
        )
        assert found[4][b, :, : call.blocks_of(0)[b]].equal(whole[4][b, :, : call.blocks_of(0)[b]])


@pytest.mark.parametrize("heads, group", ((4, 2), (1, 3)))
def test_each_owner_has_its_pairs_in_order(heads, group):
    """300 tiles of keys and 2 x 150 of queries: more than a warp loads at a time. A head may have none, or all."""
    random = torch.Generator().manual_seed(0)
    kinds = torch.randint(ABSENT, FULL + 1, (2, heads, 3, 300), generator=random).to(torch.int8)
    kinds[0, 0], kinds[1, -1] = ABSENT, FULL
    assert in_order(kinds, group) and in_order(kinds[:1].transpose(2, 3)[:, :, :150], group)


class Operations(TorchDispatchMode):
    """The operations of torch while it is active."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


VIEWS = {"select", "view", "unsqueeze", "permute", "expand", "alias", "slice"}


@pytest.mark.parametrize("packed", (False, True))
def test_a_conversion_is_one_launch_without_operations_of_torch(packed):
    """Besides memory for results: nothing that a device would wait for, whatever the lists hold."""
    call = drawn((140, 200), (64, 96), lengths=((140, 200),) if packed else None)
    lists = call.packed_lists() if packed else call.lists()
    of_meta = type(lists)._make(x.to("meta") if isinstance(x, torch.Tensor) else x for x in lists)
    with asked_for("sm_100a") as asked, Operations() as done:
        converted(call, of_meta)
    assert [config.name for config in asked] == ["block_lists_tiles_sm_100a"]
    memory = [name for name in done.names if name not in VIEWS]
    assert set(memory) <= {"new_empty", "_to_copy", "lift_fresh", "detach"}


def test_bits_do_not_depend_on_the_order_of_warps_or_on_what_memory_held(monkeypatch):
    call = drawn((300, 300), (48, 80))
    found, made = converted(call, call.lists()), block_lists.empty_tiles
    monkeypatch.setattr(
        block_lists, "empty_tiles", lambda *given: tuple(x.fill_(77) for x in made(*given))
    )
    with emulator.use(mode="hostile", seed=3):
        again = converted(call, call.lists())
    assert all(a.equal(b) for a, b in zip(found, again, strict=True))


@pytest.mark.parametrize("packed", (False, True))
def test_tracers_see_one_operator(packed):
    """torch's own checks: its schema, its results without data, symbolic sizes; and examples of torch.vmap."""
    call = drawn((140, 200), (64, 96), lengths=((140, 200), (100, 90)) if packed else None)
    lists = call.packed_lists() if packed else call.lists()
    found = Lists.of_operator(lists._asdict())
    keys = Side(200, numbers([200, 90])) if packed else Side(200)
    conversion = Conversion(found, Side(140), keys, len(call.q), True, 128)
    tensors, options = arguments_of_tiles(conversion)
    torch.library.opcheck(torch.ops.cute_fa4.block_tiles.default, tensors, options)
    if packed:
        return
    examples = [torch.stack([x, x.flip(1)]) for x in tensors[:4]]  # heads change places
    every = torch.vmap(lambda *given: torch.ops.cute_fa4.block_tiles(*given, **options))(*examples)
    for both, one in zip(every, conversion.run(), strict=True):
        assert both.equal(torch.stack([one, one.flip(1)]))
