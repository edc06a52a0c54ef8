"""Scales of keys in a key tile, in a softmax thread: K's multiply the columns of S, V's the columns of P.

A row of S or P covers every key, so a thread needs the scales of all keys of the tile. They come through a ring of
shared memory. The softmax warps release an entry after they have read it: the MMAs, which release K and V, finish
a key tile before softmax does.

    entry of the ring    BN scales of K    BN scales of V / unit    unit, three words of padding

    S      s_j *= scale of K               before the row maximum, before functions of a score
    P      p_j *= scale of V / unit        before it is rounded to eight bits; the row sum is that of p_j alone

The unit is a power of two that no scale of V in the work tile so far exceeds. So a value before rounding is at
most its value without scales, and P does not vanish where all scales are small. The unit grows from key tile to
key tile. When it grows, O, which has the unit of the previous tile, is rescaled with the factor of the row maximum:

    unit of tile n      u(n) = max(u(n-1), 2^ceil(log2 max scale))         roles/token_scales.py
    O                   O *= factor * u(n-1) / u(n),  O += P V             powers of two: exact
    at the end          O / (row sum / u)                                  the log-sum-exp has no unit

A unit u is kept as a float32, and 1 / u has the remaining exponent: bits of 2^127 minus those of u. For 0 that is
2^127, so a work tile whose scales are all 0 gets zeros without a special case.
"""

from dataclasses import dataclass, field

import cutlass.cute as cute
from cutlass import Float32, Int32

from ...layouts.scalars import choose, maximum
from ..blueprint.barriers import SCALE_SLOTS
from ..blueprint.memory_maps import scale_words
from ..sync.kernel_args import Events, Smem
from . import row_math
from .half_powers import Probabilities

ONE_OVER = 0x7F000000  # bits of 2^127: those of 1 / u are this minus those of u
LARGEST = 0x7E800000  # bits of 2^126: a larger scale has no unit with a normal inverse
MANTISSA = 0x007FFFFF
NOT_A_NUMBER = 0x7FC00000
VECTOR = 4  # float32 of one load


@dataclass(frozen=True)
class Entry:
    """The scales of a key tile, already loaded. slot: of the ring."""

    ring: cute.Tensor
    slot: Int32
    words: int

    def four(self, first: int) -> list:
        """Words `first` to first + 3, the same for all threads: one load for the warp."""
        at = (self.ring.iterator + (self.slot * self.words + first)).align(16)
        held = cute.make_rmem_tensor(VECTOR, Float32)
        cute.autovec_copy(cute.make_tensor(at, cute.make_layout(VECTOR)), held)
        return [held[i] for i in range(VECTOR)]

    def products(self, values: list, first: int) -> list:
        """values[i] * word first + i of the entry."""
        out = []
        for i in range(0, len(values), VECTOR):
            a, b, c, d = self.four(first + i)
            w, x, y, z = values[i : i + VECTOR]
            out += cute.arch.mul_packed_f32x2((w, x), (a, b))
            out += cute.arch.mul_packed_f32x2((y, z), (c, d))
        return out


def first_word(cfg, name: str) -> int:
    """The first word of the scales of K or V in an entry."""
    return cfg.tiles.BN * cfg.token_scales.index(name)


def unit_word(cfg) -> int:
    """The word of the unit of V's scales in an entry."""
    return cfg.tiles.BN * len(cfg.token_scales)


def place_of(number):
    """Entry `number` of a CTA -> (its slot, parity of its barriers)."""
    return number & (SCALE_SLOTS - 1), number // SCALE_SLOTS & 1


def begin(cfg, smem: Smem, thread):
    """Called before the first key tile of a CTA: O of this thread's row has no unit yet."""
    if "v" in cfg.token_scales:
        smem.row_unit[thread] = Float32(0.0)


def entry_of(cfg, order, smem: Smem, events: Events, work, n, i, tiles_before) -> Entry | None:
    """Wait for the scales of key tile n; None where keys have none."""
    if not cfg.token_scales:
        return None
    slot, phase = place_of(order.number_of_scales(cfg, work, n, i, tiles_before))
    events.scales_full.wait(slot, phase)
    return Entry(smem.scales, slot, scale_words(cfg, cfg.tiles.BN))


def scaled(cfg, events: Events, entry: Entry | None, scores: list) -> list:
    """The scores of a row, times the scales of K."""
    if "k" in cfg.token_scales:
        scores = entry.products(scores, first_word(cfg, "k"))
        if "v" not in cfg.token_scales:
            events.scales_empty.arrive(entry.slot)
    return scores


def release(cfg, events: Events, entry: Entry | None):
    """Called by every thread, after P: the entry has been read, unless `scaled` has released it."""
    if "v" in cfg.token_scales:
        events.scales_empty.arrive(entry.slot)


def largest_of_warp(values):
    """Bits of the largest magnitude among the values of all lanes; NaN is larger than any."""
    largest = Int32(0)
    for value in values:
        largest = maximum(largest, value.bitcast(Int32) & 0x7FFFFFFF)
    return Int32(cute.arch.warp_redux_sync(Int32(largest), "max"))


def unit_bits(largest, before):
    """Bits of the unit: the power of two that neither `largest` nor earlier ones exceed. All are bits."""
    power = choose(largest > LARGEST, NOT_A_NUMBER, (largest + MANTISSA) & ~MANTISSA)
    return Int32(maximum(before, Int32(power)))


def in_unit(values, unit) -> list:
    """values / unit; all NaN where the unit is."""
    nan = unit * 0.0  # or 0
    return [value * inverse_unit(unit) + nan for value in values]


def inverse_unit(unit):
    """1 / u for a power of two u; 2^127 for 0."""
    return (ONE_OVER - unit.bitcast(Int32)).bitcast(Float32)


def factor_of_o(cfg, smem: Smem, entry: Entry | None, thread, factor):
    """The factor of O before this key tile: the factor of the row maximum, times the ratio of the units.

    For the first key tile of a work tile, which has no earlier O, the unit is still stored.
    """
    if "v" not in cfg.token_scales:
        return factor
    unit = entry.ring[entry.slot * entry.words + unit_word(cfg)]
    before = smem.row_unit[thread]
    smem.row_unit[thread] = unit
    return factor * (before * inverse_unit(unit))


def weighted(cfg, entry: Entry | None, powers):
    """How P is computed. powers: without scales of V."""
    return Weighted(cfg, entry) if "v" in cfg.token_scales else powers


def in_unit_of_o(cfg, smem: Smem, thread, row_sum):
    """A row sum in the unit of O: what O is divided by."""
    if "v" not in cfg.token_scales:
        return row_sum
    return row_sum * inverse_unit(smem.row_unit[thread])


def hand_over_unit(cfg, smem: Smem, thread):
    """Copy the unit of a row's O for another thread, to a place that the start of the next work tile leaves alone."""
    if "v" in cfg.token_scales:
        smem.row_unit[smem.row_unit.shape // 2 + thread] = smem.row_unit[thread]


def handed_unit(cfg, smem: Smem, thread):
    """The value that hand_over_unit stored for a thread's row; None: O has no unit."""
    if "v" not in cfg.token_scales:
        return None
    return smem.row_unit[smem.row_unit.shape // 2 + thread]


@dataclass
class Weighted:
    """P times the scales of V, rounded: as half_powers.Exact, part by part of a row, from the first key on."""

    cfg: object
    entry: Entry
    unit = 2
    done: int = field(default=0)

    def __call__(self, scores: list, scale_log2, bias, emulated: frozenset, dtype: str):
        values = row_math.powers(scores, scale_log2, bias, emulated)
        weighted = self.entry.products(values, first_word(self.cfg, "v") + self.done)
        self.done += len(scores)
        return Probabilities(row_math.pack(weighted, dtype), values)
