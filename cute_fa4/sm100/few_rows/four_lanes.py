"""Four lanes that have adjacent columns of O exchange them, so that each stores its four columns of a row at once.

    lane of four     0       1       2       3             before, each has one column of every row
    row 0            0,0     0,1     0,2     0,3
    row 1            1,0     1,1     1,2     1,3
    row 2            2,0     2,1     2,2     2,3
    row 3            3,0     3,1     3,2     3,3

    with lane ^ 2    rows 0, 1 of columns 0, 2 or 1, 3     lanes 0 and 1; the others have rows 2, 3
    with lane ^ 1    row 0   row 1   row 2   row 3         of all four columns: 8 bytes of 16-bit numbers

A store of one number takes as long as one of four, and as many registers for its address. 64 rows of 512 columns took
10,000 modeled cycles, a column of a row at a time (docs/decisions/0080).
"""

from dataclasses import dataclass

import cutlass.cute as cute
from cutlass import Int32, select_

from cute_fa4.dtypes import UNQUANTIZED

from ..steps import row_math

COLUMNS = 4


def selector(order: str) -> int:
    """The operand of prmt that puts bytes in order, the lowest one first: 0 to 3 of one word, 4 to 7 of a second.

    >>> hex(selector("0145"))
    '0x5410'
    """
    return int(order[::-1], 16)


@dataclass(frozen=True)
class FourLanes:
    """A lane among four.

    number   0 to 3: its column of the four, and the row that it stores
    """

    number: Int32

    @staticmethod
    def of(lane) -> "FourLanes":
        return FourLanes(lane % COLUMNS)

    @staticmethod
    def serve(cfg) -> bool:
        """Whether lanes exchange: float32, or few rows of one output, are exchanged as slowly as they are stored."""
        return cfg.o_dtype in UNQUANTIZED and len(cfg.tmem.o) > 1

    def row_of(self, values: list, dtype: str) -> list:
        """This lane's row, as two words of four columns. values: of its column in four rows, float32."""
        first, second = row_math.pack(values, dtype)  # rows 0, 1; 2, 3
        upper = self._is(2)
        a = select_(upper, second, first)
        b = self._from(2, select_(upper, first, second))  # the same two rows of the other column
        own = self._permuted(a, b, ("0145", "2367"))
        near = self._from(1, self._permuted(a, b, ("2367", "0145")))
        lower, upper = ("0145", "4501"), ("2367", "6723")
        return [self._permuted(own, near, orders) for orders in (lower + upper, upper + lower)]

    def _is(self, bit: int):
        return (self.number & bit) != 0

    def _from(self, lanes: int, word):
        """A word of the lane that is so many of four away."""
        return cute.arch.shuffle_sync_bfly(word, lanes)

    def _permuted(self, a, b, orders: tuple[str, ...]) -> Int32:
        """Bytes of two words, in the order for this lane: of those for odd lanes the second, or of four its own."""
        chosen = Int32(selector(orders[0]))
        for number, order in enumerate(orders[1:], 1):
            mine = self._is(1) if len(orders) == 2 else self.number == number
            chosen = select_(mine, Int32(selector(order)), chosen)
        return Int32(cute.arch.prmt(a, b, chosen))
