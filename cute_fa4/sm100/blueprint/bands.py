"""Masks: which keys a query sees, as bands lo <= key < hi, and what follows for whole tiles.

With p the query's position in key coordinates (query i of a sequence of m queries and n keys: p = i + n - m):

    mask                lo              hi              serves
    Full                0               n               encoders, cross attention
    Causal              0               p + 1           decoders
    Window(left, right) p - left        p + right + 1   sliding windows; a side that is None is open
    Chunked             (p // W) W      lo + W          blocks that see only themselves
    ChunkedCausal       (p // W) W      p + 1           Llama 4
    Both(A, B)          seen through A and through B: the larger lo, the smaller hi
    Either(A, B)        seen through A or through B: a hull for the tile range, both bands for every key

lo and hi never decrease with p. So the first row of a tile bounds what all rows see on the right, the last row on the
left, and a tile between ceil(lo(last row)) and floor(hi(first row)) is seen whole by all of them: it carries no mask
code. Tiles outside [lo(first row), hi(last row)) are neither loaded nor computed. Everything is clipped to [0, n).

The backward pass also asks which queries see a key: `queries` gives bands of positions, (lo, hi) that never decrease
with the key, and None for a side that is open.

Sizes (left, right, W) are run-time numbers: one compile serves every window.
"""

from dataclasses import dataclass

from cute_fa4.layouts.scalars import maximum, minimum


def bound(closer, a, b):
    """The closer of two bounds; None: no bound.

    >>> bound(max, None, 3), bound(max, 2, 3), bound(min, None, None)
    (3, 3, None)
    """
    if a is None or b is None:
        return b if a is None else a
    return closer(a, b)


@dataclass(frozen=True)
class Mask:
    """The interface of a mask. `sizes`: its `num_sizes` run-time numbers; p and n are positions and keys."""

    @property
    def num_sizes(self) -> int:
        return 0

    @property
    def has_lower_bound(self) -> bool:
        """Whether lo can be above 0: a tile range may begin with masked tiles."""
        return False

    @property
    def has_upper_bound(self) -> bool:
        """Whether hi can be below n: earlier queries may see fewer key tiles."""
        return True

    @property
    def is_band(self) -> bool:
        """Whether the hull is the mask: false for a union."""
        return True

    def bands(self, p, n, sizes):
        """[(lo, hi)], whose union is what is seen; not yet clipped to [0, n)."""
        raise NotImplementedError

    def queries(self, j, sizes):
        """[(lo, hi)] of positions, whose union sees key j; None: no bound."""
        raise NotImplementedError

    def hull(self, p, n, sizes):
        """(lo, hi) clipped to 0 <= lo, hi <= n: outside it nothing is seen."""
        bands = self.bands(p, n, sizes)
        lo, hi = bands[0]
        for other_lo, other_hi in bands[1:]:
            lo, hi = minimum(lo, other_lo), maximum(hi, other_hi)
        return maximum(lo, 0), maximum(minimum(hi, n), 0)


@dataclass(frozen=True)
class Full(Mask):
    @property
    def has_upper_bound(self) -> bool:
        return False

    def bands(self, p, n, sizes):
        return [(0, n)]

    def queries(self, j, sizes):
        return [(None, None)]


@dataclass(frozen=True)
class Causal(Mask):
    def bands(self, p, n, sizes):
        return [(0, p + 1)]

    def queries(self, j, sizes):
        return [(j, None)]


@dataclass(frozen=True)
class Window(Mask):
    """sizes: (left, right) of the sides that are bounded, in that order; together at least 0, one may be below."""

    left: bool = True
    right: bool = True

    @property
    def num_sizes(self) -> int:
        return int(self.left) + int(self.right)

    @property
    def has_lower_bound(self) -> bool:
        return self.left

    @property
    def has_upper_bound(self) -> bool:
        return self.right

    def bands(self, p, n, sizes):
        sizes = list(sizes)
        lo = p - sizes.pop(0) if self.left else 0
        hi = p + sizes.pop(0) + 1 if self.right else n
        return [(lo, hi)]

    def queries(self, j, sizes):
        sizes = list(sizes)
        hi = j + sizes.pop(0) + 1 if self.left else None
        return [(j - sizes.pop(0) if self.right else None, hi)]


@dataclass(frozen=True)
class Chunked(Mask):
    """sizes: (W,), at least 1."""

    @property
    def num_sizes(self) -> int:
        return 1

    @property
    def has_lower_bound(self) -> bool:
        return True

    def bands(self, p, n, sizes):
        first = p // sizes[0] * sizes[0]
        return [(first, first + sizes[0])]

    def queries(self, j, sizes):
        return self.bands(j, None, sizes)


@dataclass(frozen=True)
class ChunkedCausal(Chunked):
    def bands(self, p, n, sizes):
        return [(p // sizes[0] * sizes[0], p + 1)]

    def queries(self, j, sizes):
        return [(j, j // sizes[0] * sizes[0] + sizes[0])]


@dataclass(frozen=True)
class _Pair(Mask):
    """Two masks; the sizes of the first come first."""

    a: Mask
    b: Mask

    @property
    def num_sizes(self) -> int:
        return self.a.num_sizes + self.b.num_sizes

    def _bands_of_each(self, p, n, sizes):
        cut = self.a.num_sizes
        return self.a.bands(p, n, sizes[:cut]), self.b.bands(p, n, sizes[cut:])

    def _queries_of_each(self, j, sizes):
        cut = self.a.num_sizes
        return self.a.queries(j, sizes[:cut]), self.b.queries(j, sizes[cut:])


@dataclass(frozen=True)
class Both(_Pair):
    """Seen through both masks; masked where either masks."""

    @property
    def has_lower_bound(self) -> bool:
        return self.a.has_lower_bound or self.b.has_lower_bound

    @property
    def has_upper_bound(self) -> bool:
        return self.a.has_upper_bound or self.b.has_upper_bound

    @property
    def is_band(self) -> bool:
        return self.a.is_band and self.b.is_band

    def bands(self, p, n, sizes):
        of_a, of_b = self._bands_of_each(p, n, sizes)
        return [
            (maximum(a_lo, b_lo), minimum(a_hi, b_hi)) for a_lo, a_hi in of_a for b_lo, b_hi in of_b
        ]

    def queries(self, j, sizes):
        of_a, of_b = self._queries_of_each(j, sizes)
        return [
            (bound(maximum, a_lo, b_lo), bound(minimum, a_hi, b_hi))
            for a_lo, a_hi in of_a
            for b_lo, b_hi in of_b
        ]


@dataclass(frozen=True)
class Either(_Pair):
    """Seen through one mask or the other; masked only where both mask."""

    @property
    def has_lower_bound(self) -> bool:
        return self.a.has_lower_bound and self.b.has_lower_bound

    @property
    def has_upper_bound(self) -> bool:
        return self.a.has_upper_bound and self.b.has_upper_bound

    @property
    def is_band(self) -> bool:
        return False

    def bands(self, p, n, sizes):
        of_a, of_b = self._bands_of_each(p, n, sizes)
        return of_a + of_b

    def queries(self, j, sizes):
        of_a, of_b = self._queries_of_each(j, sizes)
        return of_a + of_b


def mask_fact(mask: Mask) -> str:
    """The word of a mask in the tuning table: Full, Causal or other.

    >>> [mask_fact(mask) for mask in (Full(), Causal(), Window(True, False))]
    ['Full', 'Causal', 'other']
    """
    return type(mask).__name__ if type(mask) in (Full, Causal) else "other"


KINDS = {
    kind.__name__: kind for kind in (Full, Causal, Window, Chunked, ChunkedCausal, Both, Either)
}
"""Every kind of mask, by the name under which data and operators know it."""
