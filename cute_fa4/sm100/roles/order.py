"""Hooks that the roles call in an order of products, in five groups; an order file of a family fills them in.

    group       called by                     about
    Handshake   softmax, correction, mma      the barriers awaited and raised between them
    Share       softmax, scales, merge        the key tiles and rows of a softmax warpgroup
    Buffers     softmax, correction           where S, P, factors and row sums are
    Loads       load                          in which order Q, K and V are copied
    Outputs     correction                    how O of a work tile is rescaled and stored

The hooks here are those of P stored over S, with one query tile for each of two softmax warpgroups. A hook is named for
its return value, or for the moment at which it is called.

Python resolves a hook during tracing, so an empty hook leaves no code. (An order is a dataclass
without fields because the compiler carries objects whose methods are called inside a loop through the loop.)
"""

from dataclasses import dataclass
from typing import ClassVar

from ..steps import loads, store, token_scales
from . import correction


@dataclass(frozen=True)
class Handshake:
    """P over S: the commit of s_ready covers every other wait.

    p_beside_s.py    softmax raises s_free and waits for pv_done, and correction waits for pv_done
    p_crossed.py     warpgroups wait for each other's columns, too
    """

    sum_early: ClassVar[bool] = False
    """Whether the row sum is taken between the exponentials. Where softmax and P V wait for each other, P must be there
    soon and the sum comes last; where they do not, it fills the gaps."""

    holds_p: ClassVar[bool] = False
    """Whether all of P is in registers before may_store_p: where that waits for the other warpgroup."""

    def first_columns_read(self, events, i):
        """The first_columns of the scores of query tile i are in registers."""

    def may_free_s(self, events, i, phase):
        """Before scores_read. phase: of this key tile."""

    def scores_read(self, events, i):
        """The scores of query tile i are in registers."""

    def may_store_p(self, events, work, n, i, phase):
        """Wait until the columns of P of query tile i are free, before its first part is stored."""

    def may_write_p(self, events, i, phase):
        """Wait until the last factor and the last P of query tile i have been read. phase: of this key tile."""

    def may_write_factor(self, events, at, phase):
        """Wait until correction has read the last factor of barriers `at`; here p_ready of its tile implies it."""

    def o_complete(self, events, i, phase):
        """Wait until O_i has the P V of all earlier key tiles. phase: of the tile before this one."""

    def close(self, events, i):
        """No more work: complete the phase that correction began for a tile that does not come."""
        events.p_ready.arrive(i)

    def may_make_s(self, events, i, phases):
        """Where key tiles alternate: wait until S_i has been read. Bit i of phases: parity of the next P_i."""

    def product_issued(self, events, i):
        """Where key tiles alternate: a P_i V and all MMAs before it are issued."""


@dataclass(frozen=True)
class Share:
    """Softmax warpgroup i owns query tile i, with all of its key tiles."""

    def stride(self, cfg, work):
        """The distance from one key tile of a softmax warpgroup to its next."""
        return 1

    def first_tile(self, cfg, work, i):
        """The first key tile of softmax warpgroup i."""
        return work.tiles.first

    def next_tile(self, cfg, work, n, i):
        """The first key tile of softmax warpgroup i that is at or after n."""
        return n

    def parity(self, cfg, work, n, i, before):
        """Parity of the barriers of softmax warpgroup i at key tile n; before: its key tiles in earlier work tiles."""
        return (n - work.tiles.first + before) & 1

    def number_of_tiles(self, cfg, work, i):
        """The number of the CTA's key tiles that belong to softmax warpgroup i."""
        return work.tiles.count

    def owner(self, cfg, work, n):
        """The softmax warpgroup that owns key tile n; where all own it, the first."""
        return 0

    def number_of_scales(self, cfg, work, n, i, before):
        """The entry of key tile n of softmax warpgroup i among the key scales; before: as in parity."""
        return n - work.tiles.first + before

    def q_tile(self, cfg, work, i):
        """The query tile that softmax warpgroup i works on."""
        return i

    def has_sink(self, cfg, work, i):
        """Whether the rows of softmax warpgroup i begin with the sink: True, or a Boolean of the kernel."""
        return True

    def writes_lse(self, cfg, work):
        """Whether softmax writes the log-sum-exp: True, False, or a Boolean of the kernel."""
        return True

    def leave_lse(self, cfg, args, work, row, state):
        """Before hand_over: where correction needs the log-sum-exp of a row, leave it there."""

    def hand_over(self, cfg, smem, work, thread, state):
        """Pass a row's state after its last key tile to correction: the row sum."""
        smem.row_scale[thread] = token_scales.in_unit_of_o(cfg, smem, thread, state.row_sum)


@dataclass(frozen=True)
class Buffers:
    """S, its barriers and the row's factors have one buffer for each softmax warpgroup."""

    def buffer_at(self, cfg, work, n, i, before):
        """The index of S and barriers for key tile n of softmax warpgroup i; before: as in parity."""
        return i

    def buffer_before(self, at):
        """The index for the key tile before."""
        return at

    def buffer_and_parity(self, i, number):
        """-> (S and barriers, their parity) of key tile `number` of softmax warpgroup i, over all work tiles."""
        return i, number & 1

    def s_address(self, cfg, tmem, at):
        """The address of that S; tmem: of S_i."""
        return tmem

    def first_columns(self, cfg) -> tuple:
        """Columns of S that are read before the others."""
        return ()

    def p_address(self, cfg, s_address, i):
        """The address of P; s_address: of S of softmax warpgroup i."""
        return s_address + (cfg.tmem.p[0] - cfg.tmem.s[0])

    def sum_address(self, cfg, tmem, i):
        """Address of the sum of P in a row of query tile i; None: softmax computes it. tmem: of column 0."""

    def factor_word(self, cfg, thread, at):
        """The word of row_scale that a thread writes for correction."""
        return thread


@dataclass(frozen=True)
class Loads:
    """Q0 K0 Q1 V0 K1 V1 ..., looked up when the work tile is known (load.py)."""

    starts_early: ClassVar[bool] = False
    """Whether copies of the first key tile begin before the work tile is announced: start."""

    load_tile = None  # replaces the load_tile of load.py

    def guessed_entries(self, cfg, args, block):
        """Look-ups of a CTA before it knows its work, which begins with `block`; None: no look-up."""

    def first_entries(self, cfg, args, work, guessed):
        """The page table's entries for the first key tile of the first work tile. guessed: of guessed_entries."""
        return loads.look_up(cfg, args, work, work.tiles.first)

    def start(self, cfg, warp, work, entries, at):
        """Copy early -> (the next slot, the copies made); where starts_early."""
        return at, None

    asks_early: ClassVar[bool] = False
    """Whether a block is claimed a key tile earlier: where the answer and the length would keep copies waiting."""

    def found_before(self, entries):
        """What look_up_following replaces, as large as `entries`; None where next_entries looks them up."""

    def look_up_following(self, cfg, args, following, found):
        """Look up the entries for the first key tile of the following work tile, before the last copies of this one."""
        return found

    def next_entries(self, cfg, args, work, found):
        """The entries for the first key tile of a further work tile. found: of look_up_following."""
        return loads.look_up(cfg, args, work, work.tiles.first)

    def after_tile(self, entries):
        """What load_tile gets for the next key tile in place of the copies of start. entries: of this key tile."""

    def further_arguments(self, started) -> tuple:
        """Further arguments of load_tile. started: of start, or of after_tile."""
        return ()


@dataclass(frozen=True)
class Queries:
    """Both query tiles of a work tile are loaded once, with its first key tile (load.py)."""

    load_q = staticmethod(loads.load_q)

    def uses_of_q(self, cfg, work):
        """1 where Q is not needed after this work tile, which has keys; 0 where the next one uses it, too."""
        return 1

    def q_tile_of_turn(self, turn):
        """The query tile that is loaded first, or second; K is loaded after the first."""
        return turn

    def q_place(self, cfg, work, i):
        """Where query tile i is loaded to."""
        return i

    def key_tile_of_q(self, cfg, work, i):
        """The key tile with which query tile i is loaded."""
        return work.tiles.first


@dataclass(frozen=True)
class LoadOrder(Loads, Queries):
    """Both groups of the load warp."""


@dataclass(frozen=True)
class Outputs:
    """O_i is rescaled, merged and stored as in correction.py."""

    nothing_corrected = staticmethod(correction.Corrected.none)  # kept from work tile to work tile
    correct_tiles = staticmethod(correction.correct_tiles)  # a work tile with keys
    correct_empty = staticmethod(store.zeros_of_rows)  # a work tile without keys
    store_o = staticmethod(correction.store_o)  # O of a query tile, at the end of a work tile


@dataclass(frozen=True)
class Order(Handshake, Share, Buffers, LoadOrder, Outputs):
    """All six groups."""


GROUPS = (Handshake, Share, Buffers, Loads, Queries, Outputs)
