"""AppendConfig: the compile-time choices of the kernel that appends new rows to a K/V cache."""

from dataclasses import dataclass

from ...dtypes import UNQUANTIZED, elements_in, row_of
from ...layouts.cache_scales import LINEAR
from ...scales import Scales
from ..blueprint.cache_blocks import wrong_layout
from ..blueprint.chip import ARCHES
from ..blueprint.problem import plain_integers

VECTOR_BYTES = 16  # one copy of a thread: the widest access of global memory
THREADS = 128


@dataclass(frozen=True)
class AppendConfig:
    """Every compile-time choice of the append kernel; sizes and strides are bound at each call.

    dtype      of the cache: "bf16", "fp16", "e4m3", "e5m2", or with scales of blocks "e2m1" (NVFP4), "mxe4m3" (MXFP8)
    new_dtype  of the new rows: "bf16" or "fp16" for a cache of eight bits or four; None: that of the cache
    descales   Scales of k and v, or their letters: new rows are divided by them before rounding. "head": scales from
               the caller; "row": one scale per row, which the kernel computes and writes
    four_over_six  each block of a cache of four bits has the better of two scales (cute_fa4.nvfp4)
    depth      head dim of K; rows of the cache are multiples of 16 bytes
    depth_v    head dim of V, likewise
    packed     new rows are (total_new, heads, depth) with offsets, not (batch, seqlen_new, heads, depth)
    page_size  0: the cache is (batch, seqlen, heads, depth). Any other number becomes 1: the cache is (num_pages,
               page_size, heads, depth) with a page table, and its tensors say how many rows a page has
    cache_batch_idx  a tensor says which sequence of the cache, or row of the page table, new rows are for
    v_block_scale_layout  of the scales of blocks of V: "linear" or "interleaved4" (layouts/cache_scales.py)
    arch       "sm_100a" or "sm_103a"; "sm_90a" only here, without scales of blocks: no tensor core instruction
    """

    dtype: str
    depth: int
    depth_v: int
    packed: bool = False
    page_size: int = 0
    cache_batch_idx: bool = False
    new_dtype: str | None = None
    descales: Scales | str = Scales()
    v_block_scale_layout: str = LINEAR
    four_over_six: bool = False
    arch: str = "sm_100a"

    def __post_init__(self):
        object.__setattr__(self, "descales", Scales.of(self.descales))
        plain_integers(self, "depth", "depth_v", "page_size")
        object.__setattr__(self, "page_size", min(self.page_size, 1))
        if self.new_dtype is None:
            object.__setattr__(self, "new_dtype", self.dtype)

    def contradictions(self) -> list[str]:
        """Reasons why no such kernel exists, each with value and remedy."""
        in_element = row_of(self.dtype).in_byte
        why, accepted = wrong_layout(self, in_element > 1), (self.dtype,)
        if row_of(self.dtype).is_quantized:
            accepted = UNQUANTIZED if self.of_blocks else (self.dtype, *UNQUANTIZED)
        if self.new_dtype not in accepted:
            why.append(
                f"new_dtype={self.new_dtype!r} with dtype={self.dtype!r}: use {' or '.join(map(repr, accepted))}"
            )
        of_cache = self.descales.only("k", "v") == self.descales and not self.descales.of_blocks
        of_rows = self.of_blocks and self.descales.of_keys
        if not of_cache or of_rows or (self.descales and not self.quantises):
            why.append(
                f"descales={self.descales!r} with new_dtype={self.new_dtype!r}, dtype={self.dtype!r}: use letters of "
                "'kKvV' for rows of 16 bits and a cache of 8, of 'kv' for a cache with scales of blocks, '' for others"
            )
        if self.four_over_six and in_element == 1:
            why.append(
                f"four_over_six=True with dtype={self.dtype!r}: use False, or 'e2m1', whose scales have a mantissa"
            )
        if self.of_blocks and self.arch not in ARCHES:
            why.append(
                f"arch={self.arch!r} with dtype={self.dtype!r}: use {' or '.join(map(repr, ARCHES))}, whose attention "
                "kernels read scales of blocks"
            )
        return why

    @property
    def quantises(self) -> bool:
        """Whether new rows are quantized: they have more bits than those of the cache."""
        return self.new_dtype != self.dtype

    @property
    def of_blocks(self) -> bool:
        """Whether the cache has a scale for each block of a row, which the kernel computes and writes."""
        return row_of(self.dtype).cache_scales is not None

    @property
    def paged(self) -> bool:
        return self.page_size > 0

    @property
    def elements(self) -> int:
        """Elements that a thread writes: one copy into the cache, or two of MXFP8, to have a whole block."""
        whole = row_of(self.dtype).block if self.of_blocks else 1
        return max(elements_in(self.dtype, VECTOR_BYTES), whole)

    def pieces_of(self, tensor: str) -> int:
        """Pieces of a row of "k" or "v"."""
        return (self.depth_v if tensor == "v" else self.depth) // self.elements

    @property
    def pieces(self) -> int:
        """Threads of a new row: of the pieces of K, then those of V; with scales of blocks one for both."""
        of_k, of_v = map(self.pieces_of, "kv")
        return max(of_k, of_v) if self.of_blocks else of_k + of_v

    @property
    def name(self) -> str:
        """
        >>> AppendConfig("bf16", 128, 128, page_size=16).name
        'append_bf16_d128_dv128_dense_paged_sm_100a'
        """
        layout = "packed" if self.packed else "dense"
        return "_".join(
            ["append", self.dtype, f"d{self.depth}", f"dv{self.depth_v}", layout]
            + ["paged"] * self.paged
            + ["batchidx"] * self.cache_batch_idx
            + [f"of_{self.new_dtype}"] * self.quantises
            + [f"scale_{self.descales.letters}"] * bool(self.descales)
            + [f"vscale_{self.v_block_scale_layout}"] * (self.v_block_scale_layout != LINEAR)
            + ["four_over_six"] * self.four_over_six
            + [self.arch]
        )
