"""A small call for each family of kernels, found by the rules that choose one (sm100/choose/which_kernel.py).

SHAPES is a list of calls from cheap to dear; a family's is the first that the rules give to it. A family that none
reaches fails test_every_family_has_a_shape: it gets the line that reaches it, and with it every law.
"""

from __future__ import annotations

from dataclasses import dataclass

from cute_fa4.sm100.choose.choose_config import FAMILIES
from cute_fa4.sm100.choose.which_kernel import Call, which_kernel

GROUP = 2  # query heads of a key/value head
ROPE = 64


@dataclass(frozen=True)
class Shape:
    """A call's dtypes and sizes.

    queries   of each sequence. 1: one row of two heads in a tile of 8; 40: with two heads less than a tile; 65: two
              tiles, the second with two rows
    kv_dtype, rope_dtype  where they are others than q's; blocks: q and k have scales of blocks of 32
    stays     q of 16 bits is not quantised for keys of 8, however many rows it has (q_quantize="never")
    pairs     CTAs share MMAs wherever they may (CUTE_FA4_PAIR=on)
    heads     of a latent cache, which has one itself; of_rows: of 656 bytes
    """

    queries: int
    head_dim: int = 64
    dtype: str = "bf16"
    kv_dtype: str | None = None
    rope_dtype: str | None = None
    blocks: bool = False
    stays: bool = False
    pairs: bool = False
    heads: int = 0
    of_rows: bool = False

    @property
    def call(self) -> Call:
        """As the rules read it."""
        latent = bool(self.heads)
        return Call(
            self.dtype,
            self.head_dim,
            512 if latent else self.head_dim - (ROPE if self.rope_dtype else 0),
            kv_dtype=self.kv_dtype,
            group=self.heads or GROUP,
            seqlen_q=self.queries,
            latent=latent,
            of_rows=self.of_rows,
            descales="xyv" if self.blocks else "qkv" if self.eight_bits else "",
            stays=self.stays,
            rope=ROPE if self.rope_dtype else 0,
            rope_dtype=self.rope_dtype,
            pairs=True if self.pairs else None,
        )

    @property
    def eight_bits(self) -> bool:
        """q has."""
        return self.dtype == "e4m3"

    @property
    def family(self) -> str:
        return which_kernel(self.call).family


SHAPES = (
    Shape(1),
    Shape(1, dtype="e4m3"),
    Shape(1, kv_dtype="e4m3"),
    Shape(40, kv_dtype="e4m3", stays=True),
    Shape(40, head_dim=160, kv_dtype="e4m3", stays=True),
    Shape(40),
    Shape(40, dtype="e4m3"),
    Shape(40, dtype="e4m3", blocks=True),
    Shape(65),
    Shape(65, dtype="e4m3"),
    Shape(65, pairs=True),
    Shape(40, head_dim=128, rope_dtype="e4m3"),
    Shape(40, head_dim=256),
    Shape(65, head_dim=256),
    Shape(1, head_dim=576, heads=16),
    Shape(1, head_dim=576, heads=128),
    Shape(1, head_dim=576, heads=16, of_rows=True, kv_dtype="e4m3"),
    Shape(1, head_dim=576, heads=16, kv_dtype="e4m3", stays=True),
    Shape(1, head_dim=576, heads=48, kv_dtype="e4m3", stays=True),
    Shape(1, head_dim=576, heads=48, of_rows=True, kv_dtype="e4m3"),
)


def chosen() -> dict[str, Shape]:
    """name -> shape: a family, and variants with a dtype of q that scales P, and with rows of another format."""
    found = {}
    for shape in SHAPES:
        name = shape.family
        found.setdefault(name, shape)
        if shape.dtype != found[name].dtype:
            found[f"{name} {shape.dtype}"] = shape
        if shape.of_rows != found[name].of_rows:
            found[f"{name} {shape.kv_dtype}"] = shape
    return found


CHOSEN = chosen()
LATENT = {name: shape for name, shape in CHOSEN.items() if shape.heads}
OTHERS = {name: shape for name, shape in CHOSEN.items() if not shape.heads}


def missing() -> set:
    """Families that no shape reaches."""
    return set(FAMILIES) - {name.partition(" ")[0] for name in CHOSEN}
