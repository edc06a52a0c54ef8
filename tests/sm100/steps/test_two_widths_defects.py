"""Mistakes with columns of 16 bits beside keys of 8, planted in the kernels' sources, are noticed.

The subject is that of the attention test: two query tiles of which the second has 12 rows, and a sequence of three
queries whose rows begin amid a tile of the first; k_rope in pages of 48 rows, two heads, scales of each token. A gap of
64 bytes lies between the columns of a head and those of 16 bits.
"""

import pytest
from cutlass import Int32

from cute_fa4 import emulator
from cute_fa4.calls import repeat
from cute_fa4.sm100.blueprint import tiles
from cute_fa4.sm100.blueprint.tiles import Tiles
from cute_fa4.sm100.operands import rope as operands
from cute_fa4.sm100.operands.kv_buffer import KVBuffer
from cute_fa4.sm100.roles.order import Queries
from cute_fa4.sm100.steps import loads, products, rope_rows
from cute_fa4.tma import copies
from tests.emulator.mutations.quick import OF_SOURCES, quick_or_sweep
from tests.serving.test_two_widths import assert_is_right, found

pytestmark = pytest.mark.filterwarnings("ignore::cute_fa4.EmulatorWarning")

SUBJECT = "packed, pages of 48, scales"


def is_right(subject: str) -> bool:
    repeat.clear()
    try:
        assert_is_right(subject, *found(subject))
    except (AssertionError, emulator.EmulatorError):
        return False
    return True


def kinds(change):
    """Other runs of steps of one dtype; change: (steps of the columns of the head, those of k_rope, all) -> runs."""

    def changed(made):
        def by_dtype(cfg, steps):
            (_, own), (_, shared) = made(cfg, steps)
            return change(own, shared, steps)

        return by_dtype

    return changed


def other_q(change):
    """The copy of the columns of q of 16 bits, which is the second of a query tile."""

    def changed(made):
        def load_q(cfg, args, smem, events, work, i, place=None):
            copy, issued = copies.load_tile, []

            def load_tile(operand, dtype, address, mbarrier, *where, **more):
                issued.append(address)
                if len(issued) == 2:
                    return change(copy, operand, dtype, address, mbarrier, *where)
                return copy(operand, dtype, address, mbarrier, *where, **more)

            copies.load_tile = load_tile
            try:
                made(cfg, args, smem, events, work, i, place)
            finally:
                copies.load_tile = copy

        return load_q

    return changed


def at_k(change):
    """The copies of k_rope go elsewhere; change: (address, bytes of a span) -> address."""

    def changed(made):
        def buffer(cfg, ring_address, rope):
            it = made(cfg, ring_address, rope)
            span = cfg.tiles.k_rows_per_cta * 128
            return KVBuffer(it.config, change(it.ring_address, span), it.tma)

        return buffer

    return changed


def columns(change):
    """Of 8 bits that come before the others."""
    return lambda made: property(lambda self: change(made.fget(self)))


# name -> (whose attribute, which, the change)
DEFECTS = {
    "all steps have 8 bits": (products, "by_dtype", kinds(lambda own, shared, steps: [("e4m3", own + shared)])),
    "all steps have 16 bits": (products, "by_dtype", kinds(lambda own, shared, steps: [("bf16", own + shared)])),
    "the columns of 16 bits are left out": (products, "by_dtype", kinds(lambda own, shared, steps: [("e4m3", own)])),
    "those of 8 are left out": (products, "by_dtype", kinds(lambda own, shared, steps: [("bf16", shared)])),
    "a step too many has 8 bits": (
        products, "by_dtype", kinds(lambda own, shared, steps: [("e4m3", own + shared[:1]), ("bf16", shared[1:])]),
    ),
    "a step too few has 8 bits": (
        products, "by_dtype", kinds(lambda own, shared, steps: [("e4m3", own[:-1]), ("bf16", own[-1:] + shared)]),
    ),
    "the last step of 8 bits is left out": (
        products, "by_dtype", kinds(lambda own, shared, steps: [("e4m3", own[:-1]), ("bf16", shared)]),
    ),
    "the gap in the place of k_rope": (
        products, "by_dtype",
        kinds(lambda own, shared, steps: [("e4m3", own), ("bf16", steps[2:4])]),
    ),
    "fp16 in the place of bf16": (
        products, "by_dtype", kinds(lambda own, shared, steps: [("e4m3", own), ("fp16", shared)]),
    ),
    "S begins with what lay there": (
        products, "by_dtype", lambda made: lambda cfg, steps: [("e4m3", []), *made(cfg, steps)],
    ),
    "no wait between the kinds": (
        products, "finish_kind", lambda made: lambda events: events.kind_done.commit(0),
    ),
    "a wait for the S before": (
        products, "finish_kind",
        lambda made: lambda events: (events.kind_done.wait(0, 1), events.kind_done.commit(0)),
    ),
    "no commit of the first kind": (
        products, "finish_kind", lambda made: lambda events: events.kind_done.wait(0, 0),
    ),
    "q_rope of the next rows": (
        Queries, "load_q", other_q(lambda copy, o, d, a, m, position, further: copy(o, d, a, m, position + 1, further)),
    ),
    "q_rope of the other head": (
        Queries, "load_q",
        other_q(lambda copy, o, d, a, m, position, further: copy(o, d, a, m, position, (further[0] ^ 1, *further[1:]))),
    ),
    "q_rope over the columns of 8 bits": (
        Queries, "load_q", other_q(lambda copy, o, d, a, m, *where: copy(o, d, a - 128 * 128, m, *where)),
    ),
    "q_rope of the first eight rows missing": (
        Queries, "load_q", other_q(lambda copy, o, d, a, m, *where: copy(o, d, a + 1024, m, *where)),
    ),
    "q_rope is not loaded": (Queries, "load_q", other_q(lambda copy, *given: None)),
    "k_rope over the columns of the head": (operands, "rope_buffer", at_k(lambda at, span: at - span)),
    "k_rope of the next slot": (operands, "rope_buffer", at_k(lambda at, span: at + 2 * span)),
    "k_rope a row further": (operands, "rope_buffer", at_k(lambda at, span: at + 128)),
    "the row of k_rope is that of k": (
        rope_rows, "rows_of", lambda made: lambda cfg, args, work, n, entries, of_k: of_k,
    ),
    "the bytes of 8-bit columns are awaited alone": (Tiles, "q_tile_bytes", columns(lambda n: n // 2)),
    "the depth counts columns of 16 bits once": (tiles, "tile_columns", lambda made: lambda p, granule: p.qk_depth),
    "k_rope of one sequence for both": (
        rope_rows, "keys_in_pages",
        lambda made: lambda cfg, args, work, n: (made(cfg, args, work, n)[0], Int32(3)),
    ),
}  # fmt: skip


# The same where q has all columns, of 8 bits, and a query tile takes a copy for those after the gap.
DEFECTS_OF_ONE_DTYPE = {
    "q in one copy": (Tiles, "q_comes_in_parts", lambda made: property(lambda self: False)),
    "the first columns of q for k_rope": (
        operands, "columns_of", lambda made: lambda q, first, count: made(q, 0, count),
    ),
    "k_rope without a gap before it": (operands, "rope_buffer", at_k(lambda at, span: at - span // 2)),
    "the gap in the place of k_rope": (
        products, "by_dtype",
        lambda made: lambda cfg, steps: [(d, [*part[:2], *steps[2:4]]) for d, part in made(cfg, steps)],
    ),
    "q of k_rope over the other columns": (
        loads, "load_q", other_q(lambda copy, o, d, a, m, *where: copy(o, d, a - 128 * 128, m, *where)),
    ),
}  # fmt: skip
OF_ONE_DTYPE = "one dtype, columns apart"


def assert_noticed(monkeypatch, defect: tuple, subject: str) -> None:
    owner, attribute, change = defect
    changed = change(getattr(owner, attribute))
    monkeypatch.setattr(owner, attribute, staticmethod(changed) if owner is Queries else changed)
    if attribute == "rope_buffer":  # imported by name
        monkeypatch.setattr(rope_rows, attribute, changed)
    assert not is_right(subject), "nothing noticed"


@pytest.mark.parametrize("name", quick_or_sweep(DEFECTS, OF_SOURCES))
def test_a_mistake_is_noticed(own_kernels, monkeypatch, name):
    assert_noticed(monkeypatch, DEFECTS[name], SUBJECT)


@pytest.mark.parametrize("name", quick_or_sweep(DEFECTS_OF_ONE_DTYPE, OF_SOURCES))
def test_a_mistake_with_one_dtype_is_noticed(own_kernels, monkeypatch, name):
    assert_noticed(monkeypatch, DEFECTS_OF_ONE_DTYPE[name], OF_ONE_DTYPE)


@pytest.mark.sweep
@pytest.mark.parametrize("subject", [SUBJECT, OF_ONE_DTYPE])
def test_without_one_nothing_is(own_kernels, subject):
    assert is_right(subject)


def test_the_list_names_what_there_is():
    assert len(DEFECTS) == 25 and len(DEFECTS_OF_ONE_DTYPE) == 5
