"""SlotWideTiles: WideTiles whose units have 128 columns and arrive as narrow rows in the slot where they become 16-bit.

    slot of the ring         first 16 KiB            last 16 KiB
    from memory              -                       128 keys x 128 columns of 8 bits, or of 4 in half of each line
    as the MMA takes it      columns 0..63           columns 64..127, 128 keys x 64 columns of 16 bits each

    K tile    unit 0 | unit 1 | RoPE columns         a unit of their own for columns of K in a separate tensor
    V tile    unit 0 | unit 1

The last unit of a tensor may have up to 64 columns: its 16-bit numbers are the first 16 KiB alone. RoPE columns of 16
bits arrive there.
"""

from dataclasses import dataclass

from ...blueprint.chip import SWIZZLE_BYTES, align_up
from ...blueprint.raw_rows import RAW_COLUMNS, RawRows
from ..tiles import WideTiles


@dataclass(frozen=True)
class SlotWideTiles(RawRows, WideTiles):
    """Tiles where a ring slot holds a unit of 128 columns of 16 bits."""

    @property
    def unit_columns(self) -> int:
        """Columns of a unit of K or V: those of an arriving row."""
        return RAW_COLUMNS

    @property
    def own_units(self) -> int:
        """Units of K without those of columns in a separate tensor."""
        return -(-self.problem.own_depth // self.unit_columns)

    @property
    def k_units(self) -> int:
        return self.own_units + (self.problem.rope_depth > 0)

    @property
    def v_cols_per_cta(self) -> int:
        """Columns of V in one copy: those of a unit."""
        return self.unit_columns

    @property
    def kv_slot_bytes(self) -> int:
        return self.chunk_bytes * self.unit_columns // self.swizzle_granule

    @property
    def chunk_bytes(self) -> int:
        """Bytes of 64 columns of 16 bits."""
        return self.BN * SWIZZLE_BYTES

    def raw_offset(self, is_v: bool) -> int:
        """Offset of the 8-bit rows in a slot: where the last chunk of a full unit goes."""
        return self.kv_slot_bytes - self.raw_bytes

    def k_columns(self, unit: int) -> int:
        """Columns that a unit of K contracts."""
        is_own = unit < self.own_units
        depth = self.problem.own_depth if is_own else self.problem.rope_depth
        left = align_up(depth, self.MMA_K) - (unit * self.unit_columns if is_own else 0)
        return min(self.unit_columns, left)

    def chunks(self, columns: int) -> range:
        """Offsets in a slot of the chunks that hold so many columns of a unit."""
        return range(0, -(-columns // self.swizzle_granule) * self.chunk_bytes, self.chunk_bytes)
