"""What the roles ask of an order of the products: hooks that an order file of a family fills in.

    hook            called by     when                                  P over S               P beside S
    first_read      softmax       columns that are read first, likewise -                      - (p_crossed.py)
    may_free_s      softmax       before that                           -                      - (p_crossed.py)
    scores_read     softmax       the row's scores are in registers     -                      raises s_free
    may_store_p     softmax       before P is stored                    -                      - (p_crossed.py)
    holds_p         softmax       (a choice)                            False                  False (p_crossed.py)
    sum_at          softmax, correction  (a choice)                    None: softmax adds     None (p_crossed.py)
    judge           softmax       the end of a work tile                judges it              the same
    p_stored        softmax       all of P is stored                    raises p_last          the same
    begin           softmax       before the first work tile            -                      -
    may_write_p     softmax       before the factor and P are written   -                      waits for pv_done
    may_write_factor  softmax   before a factor takes the last one's place    -              -
    o_complete      correction    before O is rescaled                  -                      waits for pv_done
    may_make_s      mma           S_i of the next tile is made, alternate.py    -                      waits for s_free
    product_issued  mma           O_i += P_i V is issued, alternate.py          -                      raises pv_done
    sum_early       softmax       (a choice)                            False                  True
    close           softmax       there is no more work                 raises p_ready         raises p_ready

Two more groups say who does what; these are their answers where softmax warpgroup i has query tile i to itself:

    stride          softmax       from a key tile of warpgroup i to its next          1: it has all of them
    first_tile      softmax       the first key tile of warpgroup i                   that of the CTA
    next_tile       softmax       the first of its key tiles that is not before n     n
    parity          softmax       of its barriers at key tile n                       n's place in the CTA's
    turns           softmax       how many of the CTA's key tiles are its             all
    owner           scales        the warpgroup that has key tile n                   any: both read its scales
    entry           softmax, scales  of the ring of scales that key tile n has        its number in the CTA
    q_tile          softmax       the query tile that warpgroup i works on            i
    has_sink        softmax       whether it counts the sink                          yes
    writes_lse      softmax       whether it writes the log-sum-exp                   yes
    hand_over       softmax       its state goes to correction                        the row sum
    q_loaded        load          the query tile that is loaded first, or second      0, 1
    q_place         load          where query tile i goes, and which barriers it has  i
    q_comes_with    load          the key tile with which query tile i is loaded      the first
    load_q          load          its copy                                            steps/loads.py
    load_tile       load          copies for a key tile                               load.py
    guess           load          pages of the first key tile, before its work        nothing
    first_entries   load          the same, with its work                             a look-up
    start           load          first copies, before the work is announced          no: starts_early is False
    told            load          what load_tile is told of them                      nothing
    corrected       correction    what is kept from work tile to work tile         key tiles, a parity
    correct_tiles   correction    a work tile with keys: rescale, merge, store O   correction.py
    correct_empty   correction    a work tile without keys                         zeros

And where S, its barriers and the row's factors are, which have one place where S_i is made after P_i V:

    buffer          softmax       which S and barriers key tile n has                 those of warpgroup i
    buffer_before   softmax       those of the tile before, for its factor            the same
    place           softmax       the same of a key tile by its number, and a parity  of warpgroup i
    scores_at       softmax       where that S is                                     where S_i is
    factor_at       softmax       where the factor or the sum of a row goes           a word for each thread

Python resolves a hook while it traces, so one that does nothing leaves nothing in the code. (An order
is a dataclass without fields because the compiler carries what is called inside a loop through the loop.)
"""

from dataclasses import dataclass
from typing import ClassVar

from ..steps import lagged, loads, store, token_scales
from . import correction


@dataclass(frozen=True)
class Order:
    """P stored over S: the commit behind s_ready covers everything that the others would wait for."""

    sum_early: ClassVar[bool] = False
    """Whether the row sum is taken between the exponentials. Where softmax and P V wait for each other, P must be there
    soon and the sum comes last; where they do not, it fills the gaps."""

    corrected = staticmethod(correction.Corrected.none)
    correct_tiles = staticmethod(correction.correct_tiles)
    correct_empty = staticmethod(store.zeros_of_rows)
    load_q = staticmethod(loads.load_q)
    load_tile = None

    def guess(self, cfg, args, block):
        """What a CTA looks up before it knows its work, which begins with `block`; None: nothing."""

    def first_entries(self, cfg, args, work, guessed):
        """The page table's entries for the first key tile of the first work tile. guessed: of guess."""
        return loads.look_up(cfg, args, work, work.tiles.first)

    def read_first(self, cfg) -> tuple:
        """Columns of S that are read before the others."""
        return ()

    def first_read(self, events, i):
        """These columns of the scores of query tile i are in registers."""

    starts_early: ClassVar[bool] = False
    """Whether copies of the first key tile begin before the work tile is announced: start."""

    def told(self, started) -> tuple:
        """What load_tile is told of these copies. started: of start, or of none_started."""
        return ()

    def none_started(self):
        """Of every later key tile."""

    def may_free_s(self, events, i, phase):
        """Before scores_read. phase: of this key tile."""

    holds_p: ClassVar[bool] = False
    """Whether all of P is in registers before may_store_p: where that waits for the other warpgroup."""

    def sum_at(self, cfg, tmem, i):
        """The address of the sum of P in a row of query tile i; None: softmax adds P up. tmem: of column 0."""

    def judge(self, cfg, args, queue, work, number, i, state):
        """Whether the row of a softmax thread must be computed again. number, i: of the work tile, the warpgroup."""
        failed = lagged.failed(cfg, args, work, self.q_tile(cfg, work, i), state.row_sum)
        queue.judge(number, failed)

    def may_store_p(self, events, work, n, i, phase):
        """Wait until the columns of P of query tile i are free: before its first part is stored."""

    def p_at(self, cfg, s_address, i):
        """The address of P; s_address: of S of softmax warpgroup i."""
        return s_address + (cfg.tmem.p[0] - cfg.tmem.s[0])

    def begin(self, events, i):
        """Softmax warpgroup i begins."""

    def p_stored(self, events, i):
        """All of P is in tensor memory, or on its way."""
        events.p_last.arrive(i)

    def scores_read(self, events, i):
        """The scores of query tile i are in registers."""

    def may_write_p(self, events, i, phase):
        """Wait until the last factor and the last P of query tile i have been read. phase: of this key tile."""

    def may_write_factor(self, events, at, phase):
        """Wait until correction has read the last factor of barriers `at`; p_ready of its tile has said it here."""

    def o_complete(self, events, i, phase):
        """Wait until O_i has all products of the key tiles before. phase: of the tile before this one."""

    def close(self, events, i):
        """Correction has begun the phase of a tile that does not come: complete it."""
        events.p_ready.arrive(i)

    def may_make_s(self, events, i, phases):
        """Where key tiles alternate: wait until S_i has been read. Bit i of phases: parity of P_i that is used next."""

    def product_issued(self, events, i):
        """Where key tiles alternate: a product with P_i and all before it are issued."""

    def q_loaded(self, turn):
        """The query tile that is loaded first, or second: K comes behind the first of them."""
        return turn

    def q_place(self, cfg, work, i):
        """Where query tile i is loaded to."""
        return i

    def q_comes_with(self, cfg, work, i):
        """The key tile with which query tile i is loaded."""
        return work.tiles.first

    def stride(self, cfg, work):
        """From a key tile of a softmax warpgroup to its next."""
        return 1

    def first_tile(self, cfg, work, i):
        """The first key tile of softmax warpgroup i."""
        return work.tiles.first

    def next_tile(self, cfg, work, n, i):
        """The first key tile of softmax warpgroup i that is not before n."""
        return n

    def parity(self, cfg, work, n, i, before):
        """Of the barriers of softmax warpgroup i at its key tile n; before: how many it had in earlier work tiles."""
        return (n - work.tiles.first + before) & 1

    def buffer(self, cfg, work, n, i, before):
        """Which S and barriers key tile n of softmax warpgroup i has; before: as of parity."""
        return i

    def buffer_before(self, at):
        """Those of the key tile before."""
        return at

    def place(self, i, number):
        """-> (S and barriers, their parity) of key tile `number` of softmax warpgroup i, over all work tiles."""
        return i, number & 1

    def scores_at(self, cfg, tmem, at):
        """The address of that S; tmem: of S_i."""
        return tmem

    def factor_at(self, cfg, thread, at):
        """The word of row_scale that a thread writes for correction."""
        return thread

    def turns(self, cfg, work, i):
        """How many of the CTA's key tiles are those of softmax warpgroup i."""
        return work.tiles.count

    def owner(self, cfg, work, n):
        """The softmax warpgroup that has key tile n; where all have it, the first."""
        return 0

    def entry(self, cfg, work, n, i, before):
        """The number of key tile n of softmax warpgroup i among the scales of keys; before: as of parity."""
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

    def hand_over(self, cfg, smem, work, thread, state):
        """A row's state behind its last key tile, for correction."""
        smem.row_scale[thread] = token_scales.in_unit_of_o(cfg, smem, thread, state.row_sum)
