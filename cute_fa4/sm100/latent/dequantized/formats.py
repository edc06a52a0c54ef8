"""RowFormat: where the parts of a row of a latent cache lie, where they are dequantized in the CTA.

    row          values                scales             rotary columns          q
    656 bytes    512 e4m3: 0-511       4 f32: 512-527     64 bf16: 528-655        bf16
    576 bytes    512 e4m3 or e5m2:     of the call, or    64 of the same dtype:   bf16 or fp16
                 0-511                 none               512-575

A problem says which by scale_dtype and rope_dtype, which only rows of 656 bytes have. Rotary columns of 16 bits are
multiplied as TMA writes them; those of 8 are a fifth slab, half of which lies beyond the row and is zeros.
"""

from dataclasses import dataclass

from cute_fa4.dtypes import BF16, E4M3, F32, QUANTIZED, UNQUANTIZED

from ...blueprint.problem import COLUMNS_OF_SCALE, Problem
from ..tiles import LATENT_DEPTH, ROPE_DEPTH

SCALES = LATENT_DEPTH // COLUMNS_OF_SCALE  # of a row that has them
SCALE_LINE_BYTES = 32  # of shared memory for the scales of a key


@dataclass(frozen=True)
class RowFormat:
    """A format of rows.

    nbytes     of a row
    rope_at    byte of a row at which its rotary columns begin
    scales_at  byte at which its scales begin; None: it has none
    dequantizes_rope   its rotary columns have 8 bits
    fields     what a problem's fields may be over such rows
    """

    nbytes: int
    rope_at: int
    scales_at: int | None
    dequantizes_rope: bool
    fields: tuple[tuple[str, tuple], ...]

    @property
    def scale_line_bytes(self) -> int:
        """Bytes of shared memory for the scales of a key."""
        return 0 if self.scales_at is None else SCALE_LINE_BYTES


STORED = {"kv_dtype": E4M3.name, "rope_dtype": BF16.name, "scale_dtype": F32.name}
"""The fields of a problem that say that rows have 656 bytes."""

SCALES_AT = LATENT_DEPTH
ROPE_AT = SCALES_AT + 4 * SCALES
ROW_BYTES = ROPE_AT + 2 * ROPE_DEPTH  # 656
OF_656 = RowFormat(
    nbytes=ROW_BYTES,
    rope_at=ROPE_AT,
    scales_at=SCALES_AT,
    dequantizes_rope=False,
    fields=(
        ("qkv_dtype", (STORED["rope_dtype"],)),
        *((name, (stored,)) for name, stored in STORED.items()),
    ),
)
OF_576 = RowFormat(
    nbytes=LATENT_DEPTH + ROPE_DEPTH,
    rope_at=LATENT_DEPTH,
    scales_at=None,
    dequantizes_rope=True,
    fields=(
        ("qkv_dtype", UNQUANTIZED),
        ("kv_dtype", QUANTIZED),
        ("rope_dtype", (None,)),
        ("scale_dtype", (None,)),
    ),
)


def format_of(problem: Problem) -> RowFormat:
    """The format of a problem's rows."""
    return OF_656 if problem.scale_dtype or problem.rope_dtype else OF_576
