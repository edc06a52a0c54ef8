"""Problem: the properties of an attention call that determine the code; the schedule determines how it runs."""

from dataclasses import dataclass
from operator import index

from cute_fa4 import scales
from cute_fa4.dtypes import (
    BF16,
    CACHED,
    E4M3,
    E8M0,
    FLOATS,
    FP16,
    PLAIN,
    PLAIN_FLOATS,
    QUANTIZED,
    UNQUANTIZED,
    Dtype,
    is_quantized,
    row_of,
)
from cute_fa4.layouts import cache_scales
from cute_fa4.layouts.block_scales import BLOCK
from cute_fa4.scales import Scales

from . import bands, cache_blocks, latent_rows, listed, rope_columns, skipping
from .chip import ARCHES
from .latent_rows import MOST_LATENT_ROWS, heads_of_latent_tile
from .score_mods import ScoreMod

# The kernel computes c s - c m, where c m has 24 bits: its rounding error is a common factor of a row's weights, which
# 8 bits of P hold up to c m = 2^24. The largest scale leaves 177 for the scores before it. A sink is divided by the
# scale: the smallest one leaves 2^63 for it (docs/numerics.md, "How large scores may be").
SMALLEST_SCALE = 2.0**-64
LARGEST_SCALE = 2.0**16
"""Of the softmax, with those of 8-bit Q and K in it."""
LARGEST_SCORE_LOG2 = {BF16.name: 30, FP16.name: 26, E4M3.name: 24}
"""By dtype of P: log2 of what the largest score of a row, scaled and in units of log2, may be (row_math.closed)."""

COMMON_PAGE = 16  # keys of a box that serves pages of every multiple: docs/decisions/0030


def plain_integers(config, *names: str) -> None:
    """Convert other integers, such as numpy's, to Python's: equal configurations have equal names."""
    for name in names:
        value = getattr(config, name)
        if type(value) is not int and hasattr(value, "__index__"):
            object.__setattr__(config, name, index(value))


@dataclass(frozen=True)
class Problem:
    """The properties of a call. Lengths, batch and head count are left out: one compile serves them all.

    qkv_dtype      "bf16" or "fp16": Q, K, V and P; "e4m3" or "e5m2": Q, K and V, with P in e4m3
    kv_dtype       "e4m3" or "e5m2": 8-bit K and V with 16-bit Q, and P is fp16; "e2m1", "mxe4m3": its blocks have
                   scales in tensors of their own (NVFP4, MXFP8); None: as qkv_dtype
    o_dtype        output; None: as qkv_dtype, or bf16 where that has eight bits
    v_block_scale_layout  where the scales of such blocks of V lie (layouts/cache_scales.py); those of K are linear
    descales       Scales, or their letters: factors that dequantize Q, K and V, and a factor of O before it is
                   rounded (cute_fa4/scales.py)
    qk_depth       head dim of Q and K, in elements
    ov_depth       head dim of V and O; None: as qk_depth
    group          query heads per key/value head
    mask           which keys a query sees: masks.Full(), masks.Causal(), masks.Window(...), ...
    q_layout       "dense" (batch, seqlen, heads, depth) or "packed" (total, heads, depth) with offsets
    kv_layout      "dense", "packed" with cu_seqlens_k, or "paged" with a page table and page_size
    seqused_q      lengths of queries come from a tensor; rows beyond are not written
    seqused_k      lengths of keys come from a tensor; rows beyond may hold anything
    cache_batch_idx  a tensor says which row of the cache, or of the page table, a sequence has
    cache_leftpad  a tensor says with which row of the cache the keys of a sequence begin
    padded_keys    a further tensor cuts the visible keys without moving positions
    page_heads_first    pages are (num_pages, heads, page_size, depth), not (num_pages, page_size, heads, depth)
    fold_pages     a page smaller than a tile comes in one copy with all its depth chunks, where the depth is a multiple
                   of the swizzle granule; pages must begin at multiples of 8 rows
    page_size      keys per page of a paged cache; 0: contiguous K and V. Multiples of COMMON_PAGE become COMMON_PAGE:
                   the kernel loads boxes of so many keys and reads the page size from the tensors of each call
    pack_gqa       the query heads of a group share a tile: rows are (position, head of the group)
    latent         V is the first ov_depth columns of K, read from there: one key/value head for all query heads
                   (multi-head latent attention, absorbed)
    sink           a logit for each query head takes part in the softmax without a value
    sink_dtype     of these logits: "f32", "bf16" or "fp16"
    score_mod      a function of the scaled score, applied before the mask; None: none
    mask_mod       a function that says whether a key is visible, in addition to the mask; None: none
    aux            (dtype, rank) of each tensor that these functions read
    q_block        queries of a block that has a list of key blocks (work/block_lists.py); 0: there are no lists
    kv_block       keys of a block of these lists
    full_blocks    further lists have the key blocks of which mask_mod hides nothing
    packed_lists   lists follow one another; a tensor says where those of a sequence begin. Otherwise they are padded
    list_offsets   another tensor says where their entries begin; otherwise all sequences have as many key blocks
    longest_first  a tensor has the work tiles, those with the longest lists first (work/lists/longest.py)
    cut_lists      with longest_first: the longest lists are cut into parts, which the tensor has (work/lists/cut.py)
    skip_softmax   key tiles of small weights are skipped (steps/skipped.py). count_skipped: counted, too
    write_lse      also write the log-sum-exp, f32, natural logarithm
    write_max      after it, also write the largest score of each row, f32, scaled: of latent caches, keys not split
    split_keys     O and the log-sum-exp are partial, one for each of several parts of the keys (work/split.py)
    share_keys     with split_keys: every CTA takes an equal share of the batch's key tiles (work/stream_k.py)
    rope_depth     last columns of K, stored in a separate tensor that all heads share (multi-head latent
                   attention, not absorbed); qk_depth counts them; 0: K has all columns
    rope_page_size keys per page of that tensor, which has a separate page table; 0: its rows are those of K
    rope_dtype     dtype of these columns, or of those after the values of a latent cache; None: that of K. If they
                   have 8 bits and K 16, they are dequantized; if 16 and K 8, those of Q are a separate tensor
    scale_dtype    "f32": such 8-bit columns have a scale for each key. For a latent cache, the dtype of the scales
                   in its rows, one for 128 numbers, or "e8m0": one for 64, after the rows of a page. None: none
    arch           "sm_100a" (B200) or "sm_103a" (B300, hardware exp2 at twice the rate)
    """

    qkv_dtype: str = "bf16"
    kv_dtype: str | None = None
    v_block_scale_layout: str = cache_scales.LINEAR
    o_dtype: str | None = None
    descales: Scales | str = Scales()
    qk_depth: int = 128
    ov_depth: int | None = None
    group: int = 1
    mask: bands.Mask = bands.Full()
    q_layout: str = "dense"
    kv_layout: str = "dense"
    seqused_q: bool = False
    seqused_k: bool = False
    cache_batch_idx: bool = False
    cache_leftpad: bool = False
    padded_keys: bool = False
    page_heads_first: bool = False
    fold_pages: bool = True
    page_size: int = 0
    pack_gqa: bool = False
    latent: bool = False
    sink: bool = False
    sink_dtype: str = "f32"
    score_mod: ScoreMod | None = None
    mask_mod: ScoreMod | None = None
    aux: tuple = ()
    q_block: int = 0
    kv_block: int = 0
    full_blocks: bool = False
    packed_lists: bool = False
    list_offsets: bool = False
    longest_first: bool = False
    cut_lists: bool = False
    skip_softmax: bool = False
    count_skipped: bool = False
    write_lse: bool = False
    write_max: bool = False
    split_keys: bool = False
    share_keys: bool = False
    rope_depth: int = 0
    rope_page_size: int = 0
    rope_dtype: str | None = None
    scale_dtype: str | None = None
    arch: str = "sm_100a"

    def __post_init__(self):
        object.__setattr__(self, "descales", Scales.of(self.descales))
        plain_integers(self, "qk_depth", "ov_depth", "group", "page_size")
        plain_integers(self, "rope_depth", "rope_page_size", "q_block", "kv_block")
        if self.page_size % COMMON_PAGE == 0 and self.page_size > 0 and self._may_bind_pages:
            object.__setattr__(self, "page_size", COMMON_PAGE)
        if self.o_dtype is None:
            object.__setattr__(self, "o_dtype", self.operand.out)
        if self.ov_depth is None:
            object.__setattr__(self, "ov_depth", self.qk_depth)

    @property
    def _may_bind_pages(self) -> bool:
        """Latent caches have boxes as large as their pages; left padding looks rows up one by one."""
        return self.kv_layout == "paged" and not (self.latent or self.cache_leftpad)

    @property
    def binds_page_size(self) -> bool:
        """Pages of any multiple of page_size keys: how many, the tensors of a call say."""
        return self.page_size == COMMON_PAGE and self._may_bind_pages

    @property
    def operand(self) -> Dtype:
        """The dtype that an MMA multiplies: that of Q, and of K and V, as they are stored or dequantized."""
        return row_of(self.qkv_dtype)

    @property
    def is_quantized(self) -> bool:
        """Q, K and V are quantized, and multiplied as they are stored."""
        return is_quantized(self.qkv_dtype)

    @property
    def stores_quantized(self) -> bool:
        """K and V are quantized in global memory."""
        return (self.kv_dtype or self.qkv_dtype) in CACHED

    @property
    def p_dtype(self) -> str:
        """The dtype of P."""
        if self.kv_dtype is not None and not self.latent:
            return row_of(self.kv_dtype).dequantized_to
        return self.operand.p

    @property
    def v_dtype(self) -> str:
        """The dtype of V in the product with P: 8-bit V is dequantized to the dtype of P."""
        return self.p_dtype if self.kv_dtype is not None and not self.latent else self.qkv_dtype

    @property
    def stored_dtype(self) -> str:
        """The dtype of elements of K and V in global memory: bytes, where two numbers share one."""
        return row_of(self.kv_dtype or self.qkv_dtype).element

    @property
    def in_element(self) -> int:
        return row_of(self.kv_dtype or self.qkv_dtype).in_byte

    @property
    def stored_ov_depth(self) -> int:
        """Elements of stored_dtype in a row of V in global memory."""
        return self.ov_depth // self.in_element

    @property
    def cache_blocks(self) -> bool:
        """K and V have scales of each few numbers of a row in tensors of their own (NVFP4, MXFP8)."""
        return row_of(self.kv_dtype).cache_scales is not None

    @property
    def stored_depth(self) -> int:
        """Elements of stored_dtype in a row of K in global memory; scales and RoPE columns follow the numbers."""
        if self.latent and self.scale_dtype and self.rope_dtype:
            return latent_rows.stored_columns(self)
        return (self.qk_depth - self.rope_depth) // self.in_element

    @property
    def latent_blocks(self) -> bool:
        """A latent cache has scales of blocks, and its RoPE columns are the last ones of V, too."""
        return self.latent and self.scale_dtype == E8M0.name

    @property
    def token_scales(self) -> tuple[str, ...]:
        """Which of k and v have a scale for each key and head."""
        return self.descales.of_keys

    @property
    def block_scales(self) -> bool:
        """Q and K have a scale for each 32 numbers of a row."""
        return self.descales.of_blocks

    @property
    def rope_stored_dtype(self) -> str:
        """The dtype of the columns of K in a separate tensor."""
        return self.rope_dtype or self.stored_dtype

    @property
    def mixes_rope(self) -> bool:
        """The RoPE columns have 16 bits and K has 8; the columns of Q that meet them have 16 bits, too."""
        return self.rope_depth > 0 and self.is_quantized and self.rope_dtype in UNQUANTIZED

    @property
    def scales_rope(self) -> bool:
        """Each key has a scale for its 8-bit RoPE columns, which are dequantized."""
        dequantized = is_quantized(self.rope_dtype) and not self.is_quantized
        return self.rope_depth > 0 and dequantized and self.scale_dtype == "f32"

    @property
    def q_depth(self) -> int:
        """Elements of qkv_dtype in a row of Q in global memory."""
        return self.own_depth if self.mixes_rope else self.qk_depth

    @property
    def own_depth(self) -> int:
        """Columns of K that a head has of its own."""
        return self.qk_depth - self.rope_depth

    @property
    def has_functions(self) -> bool:
        """Scores are changed or hidden one by one, in whole key tiles too."""
        return self.score_mod is not None or self.mask_mod is not None

    @property
    def causal(self) -> bool:
        return isinstance(self.mask, bands.Causal)

    @property
    def unequal_blocks(self) -> bool:
        """Query blocks of a sequence see different numbers of keys; the first ones, usually, the fewest.

        Lists of key blocks are not read by the host. Those of causal masks and documents are such.
        """
        return self.mask != bands.Full() or self.q_block > 0

    @property
    def heads_per_tile(self) -> int:
        """Query heads whose rows share a tile."""
        if not self.pack_gqa:
            return 1
        return self.group if not self.latent else heads_of_latent_tile(self.group, self.latent_rows)

    @property
    def picks_keys(self) -> bool:
        """A page of a latent cache is a key: the page table lists keys, and an entry that is no page hides one."""
        return self.latent and self.page_size == 1

    @property
    def latent_rows(self) -> int:
        """Rows of a tile over a latent cache; a schedule may have more."""
        return MOST_LATENT_ROWS

    @property
    def clips_keys(self) -> bool:
        """K and V are cut at run time, by a clipped operand: rows beyond a sequence exist and may hold anything."""
        return self.kv_layout != "dense" or self.seqused_k

    @property
    def clips_queries(self) -> bool:
        """O is cut at run time: rows beyond a sequence exist and must not be written."""
        return self.q_layout != "dense" or self.seqused_q

    @property
    def reads_lengths(self) -> bool:
        """Where sequences begin and end comes from tensors."""
        return self.clips_queries or self.clips_keys or self.padded_keys

    def contradictions(self) -> list[str]:
        """Why no kernel of any schedule can run this: meaningless values, or values that exclude each other."""
        why = self._wrong_types() + self._wrong_numbers() + self._wrong_layouts()
        for part in (latent_rows, rope_columns, listed, cache_blocks, skipping):
            why += part.contradictions(self)
        return why

    def _wrong_types(self) -> list[str]:
        why = []
        for name in ("qkv_dtype", "o_dtype"):
            if getattr(self, name) not in FLOATS:
                why.append(
                    f"{name}={getattr(self, name)!r} is not a dtype: use one of {', '.join(FLOATS)}"
                )
        if self.kv_dtype is not None and (self.kv_dtype not in CACHED or self.is_quantized):
            why.append(
                f"kv_dtype={self.kv_dtype!r} with qkv_dtype={self.qkv_dtype!r}: it is for quantized keys under "
                f"queries of 16 bits: use None, or one of {', '.join(CACHED)} "
                f"with {' or '.join(map(repr, UNQUANTIZED))}"
            )
        if self.kv_dtype is not None and (self.descales.q or self.descales.of_blocks):
            why.append(
                f"descales={self.descales!r} with kv_dtype={self.kv_dtype!r}: queries of 16 bits have no scale: use "
                "letters of 'kvo'"
            )
        if self.descales.only("q", "k", "v") and not self.stores_quantized:
            why.append(
                f"descales={self.descales!r} with qkv_dtype={self.qkv_dtype!r}: scales of q, k and v are for 8-bit "
                f"elements: use '' or 'o', or one of {', '.join(QUANTIZED)}"
            )
        why += self._wrong_blocks()
        if not isinstance(self.mask, bands.Mask):
            why.append(
                f"mask={self.mask!r} is not a kind of mask: use masks.Causal(), masks.Window(), ..., or .mask of a "
                "call takes, as masks.chunked(64).mask"
            )
        if self.sink_dtype not in PLAIN_FLOATS:
            why.append(
                f"sink_dtype={self.sink_dtype!r} is not a dtype of sinks: use one of {', '.join(PLAIN_FLOATS)}"
            )
        for dtype, rank in self.aux:
            if dtype not in PLAIN or rank < 1:
                why.append(
                    f"aux=({dtype!r}, {rank}): use a rank of at least 1 and one of {', '.join(PLAIN)}"
                )
        for name in ("rope_dtype", "scale_dtype"):
            accepted = FLOATS
            if name == "scale_dtype" and self.latent:
                accepted += (E8M0.name,)
            if getattr(self, name) not in (None, *accepted):
                why.append(
                    f"{name}={getattr(self, name)!r} is not a dtype: use None or one of {', '.join(accepted)}"
                )
        if self.arch not in ARCHES:
            why.append(
                f"arch={self.arch!r} has no tcgen05 kernel here: use one of {', '.join(ARCHES)}"
            )
        return why

    def _wrong_blocks(self) -> list[str]:
        """Errors in block scales, which the tensor core itself applies to Q and K."""
        why = []
        if (self.descales.q == scales.BLOCK) != (self.descales.k == scales.BLOCK):
            why.append(
                f"descales={self.descales!r}: a product takes scales of blocks of both operands: use both x (Q) and y "
                "(K), or neither"
            )
        if self.block_scales and self.qk_depth % BLOCK:
            why.append(
                f"descales={self.descales!r} with qk_depth={self.qk_depth}: a row has whole blocks of {BLOCK}: use a "
                f"multiple of {BLOCK}"
            )
        if self.block_scales and (self.latent or self.rope_depth):
            why.append(
                f"descales={self.descales!r} with latent={self.latent}, rope_depth={self.rope_depth}: scales of blocks "
                "are for K of each head: use letters of 'qkvo'"
            )
        return why

    def _wrong_numbers(self) -> list[str]:
        why = []
        for name in ("qk_depth", "ov_depth", "group"):
            if getattr(self, name) < 1:
                why.append(f"{name}={getattr(self, name)} must be at least 1")
        for name in ("page_size", "rope_depth", "rope_page_size", "q_block", "kv_block"):
            if getattr(self, name) < 0:
                why.append(
                    f"{name}={getattr(self, name)} must not be negative: 0 means that it is not set"
                )
        return why

    def _wrong_layouts(self) -> list[str]:
        why = []
        if self.q_layout not in ("dense", "packed"):
            why.append(
                f"q_layout={self.q_layout!r} is not a layout of queries: use 'dense' or 'packed'"
            )
        if self.kv_layout not in ("dense", "packed", "paged"):
            why.append(
                f"kv_layout={self.kv_layout!r} is not a layout of keys: use 'dense', 'packed' or 'paged'"
            )
        if (self.kv_layout == "paged") != bool(self.page_size):
            why.append(
                f"page_size={self.page_size} with kv_layout={self.kv_layout!r}: a paged layout has a page size, "
                f"the others have 0"
            )
        if self.kv_layout == "paged" and not self.seqused_k:
            why.append(
                "kv_layout='paged' with seqused_k=False: a page table does not say how long a sequence is: use "
                "seqused_k=True"
            )
        if self.split_keys and not (self.write_lse and self.o_dtype == "f32"):
            why.append(
                f"split_keys=True with write_lse={self.write_lse}, o_dtype={self.o_dtype!r}: parts are merged by "
                "their log-sum-exp, in float32: use write_lse=True and o_dtype='f32'"
            )
        if self.share_keys and not self.split_keys:
            why.append(
                "share_keys=True with split_keys=False: a CTA's stretch of the keys begins and ends within sequences: "
                "use split_keys=True"
            )
        for name in ("cache_batch_idx", "cache_leftpad"):
            if getattr(self, name) and (self.kv_layout == "packed" or not self.seqused_k):
                why.append(
                    f"{name}=True with kv_layout={self.kv_layout!r}, seqused_k={self.seqused_k}: it is about the "
                    "rows of a cache: use kv_layout='dense' or 'paged', and seqused_k=True"
                )
        return why
