"""Scales of keys where a thread owns a key: K's multiplies its scores in all rows, V's its probabilities.

    S^T    s *= scale of K             one scale per thread, read from global memory one key tile ahead
    P^T    p *= scale of V / unit      before p is rounded; the row sum takes p without it

The unit is as in steps/token_scales.py: the power of two above all scales of V so far. Every warp finds the largest of
its 32 keys, and the four warps exchange theirs with the row maxima, at the same barrier (columns.py). Where the unit
grows, O is rescaled as it is where a maximum grows.
"""

from dataclasses import dataclass, replace

from cutlass import Float32, Int32

from ..steps import token_scales
from ..steps.token_scales import inverse_unit
from ..sync.kernel_args import Smem
from ..work import blocks, scales


@dataclass(frozen=True)
class KeyScales:
    """The scales of keys that a softmax thread holds.

    ahead  scales of its key in the next key tile: of K and of V, where they exist
    unit   bits of the unit of O; None: V has no scales per key
    """

    ahead: tuple
    unit: Int32 | None

    def of(self, cfg, name: str):
        """The scale of "k" or "v" in the next key tile."""
        return self.ahead[cfg.token_scales.index(name)]


def read(cfg, args, work, place, n, end) -> tuple:
    """The scales of this thread's key in key tile n; 0 from tile `end` on."""
    key = blocks.key_tile(cfg, n) * cfg.tiles.BN + place.thread
    return scales.of_key(cfg, args, work, key, n < end)


def begin(cfg, args, work, place) -> KeyScales | None:
    """The state before the first key tile of a work tile; None: keys have no scales."""
    if not cfg.token_scales:
        return None
    first, end = work.tiles.first, work.tiles.first + work.tiles.count
    unit = Int32(0) if "v" in cfg.token_scales else None
    return KeyScales(read(cfg, args, work, place, first, end), unit)


def read_ahead(cfg, args, work, place, n, of_keys: KeyScales | None) -> tuple | None:
    """Scales of the key tile after n, in flight while the warp waits for S of tile n."""
    if of_keys is None:
        return None
    return read(cfg, args, work, place, n + 1, work.tiles.first + work.tiles.count)


def scaled(cfg, of_keys: KeyScales | None, scores: list) -> list:
    """The scores of this thread's key, times its scale of K."""
    if "k" not in cfg.token_scales:
        return scores
    factor = of_keys.of(cfg, "k")
    return [score * factor for score in scores]


def hand_in(cfg, smem: Smem, place, number, of_keys: KeyScales | None):
    """The largest scale of V of this warp's keys, for exchange `number`, which comes next."""
    if "v" in cfg.token_scales:
        largest = token_scales.largest_of_warp([of_keys.of(cfg, "v")])
        smem.row_values[(number & 1, place.warp, cfg.tiles.row_values - 1)] = Int32(
            largest
        ).bitcast(Float32)


def new_unit(cfg, smem: Smem, number, of_keys: KeyScales | None):
    """Bits of the unit after that exchange; None: there is no unit."""
    if "v" not in cfg.token_scales:
        return None
    unit = of_keys.unit
    for warp in range(4):
        found = smem.row_values[(number & 1, warp, cfg.tiles.row_values - 1)]
        unit = token_scales.unit_bits(Float32(found).bitcast(Int32), unit)
    return unit


def weight(cfg, of_keys: KeyScales | None, unit):
    """The factor of P of this thread's key, applied before rounding; None: no factor."""
    if "v" not in cfg.token_scales:
        return None
    (ratio,) = token_scales.in_unit([of_keys.of(cfg, "v")], Int32(unit).bitcast(Float32))
    return ratio


def grows(of_keys: KeyScales | None, unit, moved):
    """Whether O must be rescaled: because a maximum moved, or because the unit grew."""
    return moved if unit is None else moved | (unit != of_keys.unit)


def growth(of_keys: KeyScales | None, unit):
    """The factor of O from the old unit to the new one; None: there is no unit."""
    if unit is None:
        return None
    before, now = (Int32(bits).bitcast(Float32) for bits in (of_keys.unit, unit))
    return before * inverse_unit(now)


def after(of_keys: KeyScales | None, ahead: tuple | None, unit) -> KeyScales | None:
    """The state after a key tile."""
    return None if of_keys is None else replace(of_keys, ahead=ahead, unit=unit)


def unit_of(states):
    """The unit of O after the last key tile; None: there is no unit."""
    if states.of_keys is None or states.of_keys.unit is None:
        return None
    return Int32(states.of_keys.unit).bitcast(Float32)
