"""Scales of keys in a key tile: K's multiply the columns of S, V's those of P. What a softmax thread does with them.

A row of S or P meets every key, so a thread needs the scales of all keys of the tile. They come through a ring of
shared memory that the softmax warps release, when they have read an entry: the products, which release K and V, are
done with a key tile before softmax is.

    entry of the ring    BN scales of K    BN scales of V / unit    unit, three words of padding

    S      s_j *= scale of K               before the row maximum, before functions of a score
    P      p_j *= scale of V / unit        before it is rounded to eight bits; the row sum is that of p_j alone

The unit is a power of two that none of the scales of V exceeds which the work tile has met. So what is rounded is at
most what it would be without scales, and P does not vanish where all scales are small. The unit grows from key tile to
key tile, and where it does, O, which has the unit of the tile before, is rescaled with the factor of the row maximum:

    unit of tile n      u(n) = max(u(n-1), 2^ceil(log2 max scale))         roles/token_scales.py
    O                   O *= factor * u(n-1) / u(n),  O += P V             powers of two: exact
    at the end          O / (row sum / u)                                  the log-sum-exp has no unit

A unit u is kept as a float32, and 1 / u is what is left of the exponent: bits of 2^127 less those of u. That of 0 is
2^127, so a work tile all of whose scales are 0 gets zeros without a case of its own.
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

ONE_OVER = 0x7F000000  # bits of 2^127: those of 1 / u are this less those of u
LARGEST = 0x7E800000  # bits of 2^126: what is above has no unit whose inverse is normal
MANTISSA = 0x007FFFFF
NOT_A_NUMBER = 0x7FC00000
VECTOR = 4  # float32 of one load


@dataclass(frozen=True)
class Entry:
    """The scales of a key tile, which are there. slot: of the ring."""

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
    """Of the scales of K or V in an entry."""
    return cfg.tiles.BN * cfg.token_scales.index(name)


def unit_word(cfg) -> int:
    """Of the unit of V's in an entry."""
    return cfg.tiles.BN * len(cfg.token_scales)


def place_of(number):
    """Entry `number` of a CTA -> (its slot, parity of its barriers)."""
    return number & (SCALE_SLOTS - 1), number // SCALE_SLOTS & 1


def begin(cfg, smem: Smem, thread):
    """Before the first key tile of a CTA: O of this thread's row has no unit yet."""
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
    """Every thread, behind P: the entry has been read, unless `scaled` has said so."""
    if "v" in cfg.token_scales:
        events.scales_empty.arrive(entry.slot)


def largest_of_warp(values):
    """Bits of the largest size of some values of all lanes; NaN is larger than any."""
    largest = Int32(0)
    for value in values:
        largest = maximum(largest, value.bitcast(Int32) & 0x7FFFFFFF)
    return Int32(cute.arch.warp_redux_sync(Int32(largest), "max"))


def unit_bits(largest, before):
    """Bits of the unit: the power of two that neither `largest` nor those before exceed. All are bits."""
    power = choose(largest > LARGEST, NOT_A_NUMBER, (largest + MANTISSA) & ~MANTISSA)
    return Int32(maximum(before, Int32(power)))


def in_unit(values, unit) -> list:
    """values / unit; all NaN where the unit is."""
    nan = unit * 0.0  # or 0
    return [value * inverse_unit(unit) + nan for value in values]


def inverse_unit(unit):
    """1 / u of a power of two, or of 0 2^127."""
    return (ONE_OVER - unit.bitcast(Int32)).bitcast(Float32)


def factor_of_o(cfg, smem: Smem, entry: Entry | None, thread, factor):
    """What O is multiplied by before this key tile: the factor of the row maximum, and from unit to unit.

    Of the first key tile of a work tile, before which there is no O, the unit is kept all the same.
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
    """The unit of a row's O, which another thread reads: where it stays while the next work tile begins."""
    if "v" in cfg.token_scales:
        smem.row_unit[smem.row_unit.shape // 2 + thread] = smem.row_unit[thread]


def handed_unit(cfg, smem: Smem, thread):
    """What hand_over_unit said of a thread's row; None: O has none."""
    if "v" not in cfg.token_scales:
        return None
    return smem.row_unit[smem.row_unit.shape // 2 + thread]


@dataclass
class Weighted:
    """P times the scales of V, rounded: what half_powers.Exact does, part by part of a row, from the first key on."""

    cfg: object
    entry: Entry
    unit = 2
    done: int = field(default=0)

    def __call__(self, scores: list, scale_log2, bias, emulated: frozenset, dtype: str):
        values = row_math.powers(scores, scale_log2, bias, emulated)
        weighted = self.entry.products(values, first_word(self.cfg, "v") + self.done)
        self.done += len(scores)
        return Probabilities(row_math.pack(weighted, dtype), values)
