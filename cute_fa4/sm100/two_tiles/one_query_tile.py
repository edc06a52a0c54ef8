"""A CTA with one query tile, whose rows have the bits of a CTA with two: P beside S, V loaded late.

    ring     K0  K1 V0  K2 V1  ...  K(last) V(last-1)  V(last)      then K0 of the next work tile
    mma      S0  S1 O0  S2 O1  ...  S(last) O(last-1)  S0 of the next work tile, O(last)

For a row the operations and their order are those of two query tiles, and the MMAs have the same shapes. Only the waits
and the order of the copies differ. The tensor memory of the second query tile holds P beside S for any depth, so the
next S is made while softmax works on P.

V of a key tile is needed a softmax later than its K. Loaded after the next K, it does not hold a slot meanwhile, and
more copies are in flight. That needs one load warp, and slots that hold whole tiles of K; otherwise K and V alternate
(p_beside_s.py).

With P over S the row sum comes last, and the FMA units compute no exponential of the first quarter (steps/scores.py).
Here sum_early decides the same, because the order of two query tiles decides the bits.
"""

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32

from ...layouts.scalars import choose
from ..operands.kv_buffer import KVBuffer, KVBufferConfig
from ..operands.rope import own_columns
from ..steps import loads, rope_rows, store_rows
from ..steps.warps import LoadWarp, MmaWarp, ScoreTile, TileToLoad
from ..sync.kernel_args import Events, KernelArgs, Smem
from ..sync.pipelines import KVConsumerPipeline, KVPosition, Slot
from ..work import runs
from ..work.queue import NO_MORE, WorkQueue
from ..work.tile import Work
from .p_beside_s import PBesideSCode, add_pending, last_products, make_next_s


@dataclass(frozen=True)
class Started:
    """before: page-table entries of the key tile before; k: whether K of this one is in flight, and `at` past it."""

    before: Int32 | tuple
    k: Boolean


def before_and_end(cfg, work: Work) -> tuple:
    """-> (a number of S that Q made before this work tile, 0 or 1 will do; 1 if Q makes none after it, else 0)."""
    if not cfg.in_runs:
        return Int32(0), Int32(1)
    return runs.begins_q(work.tile.part) ^ 1, runs.ends_q(work.tile.part)


def is_first_of_q(cfg, work: Work, n):
    """Whether Q is loaded with key tile n."""
    is_first = n == work.tiles.first
    return is_first & (runs.begins_q(work.tile.part) != 0) if cfg.in_runs else is_first


def positions_of(kv: KVConsumerPipeline, at: KVPosition, v_first) -> tuple[KVPosition, KVPosition]:
    """-> (K of a key tile, V of the one before), of the next two slots. v_first: the latter ends another work tile."""
    here, following = at, kv.step(at)
    return chosen(v_first, following, here), chosen(v_first, here, following)


def chosen(condition, a: KVPosition, b: KVPosition) -> KVPosition:
    index = choose(condition, a.slot.index, b.slot.index)
    phase = choose(condition, a.slot.phase, b.slot.phase)
    return KVPosition(Slot(index, phase), a.held_v)


@cute.jit
def run(
    cfg: cutlass.Constexpr,
    args: KernelArgs,
    smem: Smem,
    tmem: Int32,
    events: Events,
    kv: KVConsumerPipeline,
    queue: WorkQueue,
):
    mma = MmaWarp(smem, tmem, events, kv)
    at = kv.first()
    phase = Int32(1)  # of S and P of the key tile before
    pending, accumulate = Boolean(False), Boolean(False)
    number, q_phase = Int32(0), Int32(0)
    work = queue.next(cfg, args, number)
    count = work.tiles.count
    while count != NO_MORE:
        before, ends = before_and_end(cfg, work)
        of_q = before + count + 1 - ends
        for n in cutlass.range(count, unroll=1):
            at_k, at_v = positions_of(kv, at, pending & (n == 0))
            make_next_s(cfg, mma, at_k, ScoreTile(0, before + n, of_q, q_phase), phase)
            if pending:
                add_pending(cfg, mma, at_v, 0, n, phase, accumulate)
                kv.release(at_v)
                at = kv.step(at)
            at = kv.step(at)
            accumulate = n > 0
            pending = Boolean(True)
            phase = phase ^ 1
        if count > 0:
            q_phase = q_phase ^ ends
        number = number + 1
        work = queue.next(cfg, args, number)
        count = work.tiles.count
        if count <= 0 and pending:  # the end, or work tiles without keys: nothing to wait for
            last_products(cfg, mma, at, (phase,), accumulate)
            at = kv.step(at)
            pending = Boolean(False)


@cute.jit
def load_tile(
    cfg: cutlass.Constexpr,
    order: cutlass.Constexpr,
    warp: LoadWarp,
    tile: TileToLoad,
    at: Slot,
    q_phase: Int32,
    started: Started,
) -> Slot:
    """K of key tile n, then V of the one before; as load_tile of roles/load.py.

    Q comes with the first key tile, and V of the last one with it.
    """
    args, smem, events, kv = warp.args, warp.smem, warp.events, warp.kv
    work, n, entries = tile.work, tile.n, tile.entries
    k = KVBuffer(own_columns(cfg), smem.kv_address, args.k)
    v = KVBuffer(KVBufferConfig.as_it_arrives(cfg, is_v=True), smem.kv_address, args.v)
    of_k, of_v = loads.find_rows(cfg, args, work, n, entries)
    rope = rope_rows.found_of(cfg, args, smem, work, n, entries, of_k)
    if not started.k:
        at = loads.load_k(cfg, k, kv, work, at, of_k, rope)
    if is_first_of_q(cfg, work, n):
        events.q_free.wait(0, q_phase ^ 1)
        loads.load_q(cfg, args, smem, events, work, 0)
    if n != work.tiles.first:
        _, of_v_before = loads.find_rows(cfg, args, work, n - 1, started.before)
        at = loads.load_v(cfg, v, kv, work, at, of_v_before)
    if n == work.tiles.first + work.tiles.count - 1:
        at = loads.load_v(cfg, v, kv, work, at, of_v)
    return at


def start(
    cfg, warp: LoadWarp, work: Work, entries: Int32 | tuple, at: Slot
) -> tuple[Slot, Started]:
    """K of the first key tile, if there is one, before the work tile is announced."""
    at, started = loads.load_first_k(cfg, own_columns(cfg), warp, work, entries, at)
    return at, Started(entries, started)


@dataclass(frozen=True)
class OneQueryTile(PBesideSCode):
    """K and V alternate."""

    store_o = staticmethod(store_rows.store_o)
    correct_empty = staticmethod(store_rows.zeros)


@dataclass(frozen=True)
class SumLate(OneQueryTile):
    """The same; the row sum comes last."""

    sum_early = False


@dataclass(frozen=True)
class VLater(OneQueryTile):
    """V of a key tile is loaded after K of the next one."""

    run = staticmethod(run)
    load_tile = staticmethod(load_tile)
    start = staticmethod(start)
    starts_early = asks_early = True

    def guessed_entries(self, cfg, args, block):
        _, turn = loads.guessed_turn(cfg, args, block)
        return loads.guess(cfg, args, block), turn

    def first_entries(self, cfg, args, work, guessed):
        entries, turn = guessed
        if entries is None:
            return loads.look_up(cfg, args, work, work.tiles.first)
        return loads.look_up_guessed(cfg, args, work, entries, turn)

    def found_before(self, entries):
        return entries

    def look_up_following(self, cfg, args, following, found):
        return loads.look_up(cfg, args, following, following.tiles.first)

    def next_entries(self, cfg, args, work, found):
        return found

    def uses_of_q(self, cfg, work):
        return runs.ends_q(work.tile.part) if cfg.in_runs else 1

    def after_tile(self, entries):
        return Started(entries, Boolean(False))

    def further_arguments(self, started):
        return (started,)


@dataclass(frozen=True)
class VLaterSumLate(VLater):
    """The same; the row sum comes last."""

    sum_early = False


# By the order of two query tiles, whose bits the rows have.
ALTERNATING = {"p_over_s": SumLate(), "p_beside_s": OneQueryTile(), "p_crossed": OneQueryTile()}
LATER = {"p_over_s": VLaterSumLate(), "p_beside_s": VLater(), "p_crossed": VLater()}


def codes_of(cfg) -> dict:
    """The orders, by the order of two query tiles."""
    return LATER if cfg.schedule.loads_v_late(cfg) else ALTERNATING
