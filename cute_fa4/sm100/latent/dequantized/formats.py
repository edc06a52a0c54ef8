"""RowFormat: where the parts of a row of a latent cache lie, where they are dequantized in the CTA.

    row          values                scales             rotary columns          q
    656 bytes    512 e4m3: 0-511       4 f32: 512-527     64 bf16: 528-655        bf16
    584 bytes    448 e4m3: 0-447       7 e8m0, in 8       64 bf16: 448-575,       bf16
                                       bytes elsewhere    which are values, too
    576 bytes    512 e4m3 or e5m2:     of the call, or    64 of the same dtype:   bf16 or fp16
                 0-511                 none               512-575

A problem says which by scale_dtype and rope_dtype, which rows of 576 bytes do not have. Rotary columns of 16 bits are
multiplied as TMA writes them; those of 8 are a fifth slab, half of which lies beyond the row and is zeros. If they are
values, too, they are stored in place of the last half of slab 3, whose first half comes in lines next to it.

Rows of 584 bytes have their scales after the rows of their page: 576 bytes for each row, then 8 for each (blocks.py).
"""

from dataclasses import dataclass

from cute_fa4.dtypes import BF16, E4M3, E8M0, F32, QUANTIZED, UNQUANTIZED

from ...blueprint.latent_rows import COLUMNS_OF_BLOCK, COLUMNS_OF_SCALE
from ...blueprint.problem import Problem
from ..tiles import LATENT_DEPTH, ROPE_DEPTH

SCALES = LATENT_DEPTH // COLUMNS_OF_SCALE  # of a row that has them
SCALE_LINE_BYTES = 32  # of shared memory for the scales of a key


@dataclass(frozen=True)
class Lines:
    """Bytes of each key that are copied without swizzle, next to a slab of the key tile.

    slab    number of the slab
    first   byte of a row at which they begin
    nbytes  of a key; four gathered rows must fill a multiple of 128 bytes
    """

    slab: int
    first: int
    nbytes: int


@dataclass(frozen=True)
class RowFormat:
    """A format of rows.

    nbytes     of a row; scales that lie elsewhere do not count
    rope_at    byte of a row at which its rotary columns begin
    lines      its scales, or the values before its rotary columns; None: it has none
    dequantizes_rope   its rotary columns have 8 bits
    rope_in_v  its rotary columns are the last ones of its values, too
    fields     what a problem's fields may be over such rows
    """

    nbytes: int
    rope_at: int
    lines: Lines | None
    dequantizes_rope: bool
    rope_in_v: bool
    fields: tuple[tuple[str, tuple], ...]

    @property
    def bytes_with_scales(self) -> int:
        """Bytes of a row and of its scales, wherever they lie: what a format is called by."""
        return self.nbytes + BLOCKS * self.rope_in_v

    @property
    def line_bytes(self) -> int:
        """Bytes of shared memory for the line of a key."""
        return 0 if self.lines is None else self.lines.nbytes

    @property
    def has_scales(self) -> bool:
        """Whether a row has scales of its own, wherever they lie."""
        return dict(self.fields)["scale_dtype"] != (None,)

    @property
    def depths(self) -> tuple[int, int]:
        """Columns of K and of V."""
        return LATENT_DEPTH + (0 if self.rope_in_v else ROPE_DEPTH), LATENT_DEPTH

    def first_byte(self, slab: int) -> int:
        """The byte of a row at which the 128 bytes of a slab begin."""
        if self.rope_in_v and slab == LATENT_DEPTH // COLUMNS_OF_SCALE - 1:
            return self.rope_at
        return slab * COLUMNS_OF_SCALE


STORED = {"kv_dtype": E4M3.name, "rope_dtype": BF16.name, "scale_dtype": F32.name}
"""The fields of a problem that say that rows have 656 bytes."""
STORED_IN_PAGES = STORED | {"scale_dtype": E8M0.name}
"""The same of 584."""


def _fields(stored: dict) -> tuple:
    """q has the dtype of the rotary columns."""
    each = ((name, (value,)) for name, value in stored.items())
    return ("qkv_dtype", (stored["rope_dtype"],)), *each


SCALES_AT = LATENT_DEPTH
ROPE_AT = SCALES_AT + 4 * SCALES
ROW_BYTES = ROPE_AT + 2 * ROPE_DEPTH  # 656
OF_656 = RowFormat(
    nbytes=ROW_BYTES,
    rope_at=ROPE_AT,
    lines=Lines(0, SCALES_AT, SCALE_LINE_BYTES),
    dequantizes_rope=False,
    rope_in_v=False,
    fields=_fields(STORED),
)
BLOCKS = LATENT_DEPTH // COLUMNS_OF_BLOCK  # bytes of the scales of a row; the last one is not used
VALUES = LATENT_DEPTH - ROPE_DEPTH  # of 8 bits
BYTES_IN_PAGE = VALUES + 2 * ROPE_DEPTH + BLOCKS  # 584
OF_584 = RowFormat(
    nbytes=BYTES_IN_PAGE - BLOCKS,
    rope_at=VALUES,
    lines=Lines(3, VALUES - COLUMNS_OF_BLOCK, COLUMNS_OF_BLOCK),
    dequantizes_rope=False,
    rope_in_v=True,
    fields=(*_fields(STORED_IN_PAGES), ("page_size", (1,))),
)
OF_576 = RowFormat(
    nbytes=LATENT_DEPTH + ROPE_DEPTH,
    rope_at=LATENT_DEPTH,
    lines=None,
    dequantizes_rope=True,
    rope_in_v=False,
    fields=(
        ("qkv_dtype", UNQUANTIZED),
        ("kv_dtype", QUANTIZED),
        ("rope_dtype", (None,)),
        ("scale_dtype", (None,)),
    ),
)


def format_of(problem: Problem) -> RowFormat:
    """The format of a problem's rows."""
    if problem.latent_blocks:
        return OF_584
    return OF_656 if problem.scale_dtype or problem.rope_dtype else OF_576
