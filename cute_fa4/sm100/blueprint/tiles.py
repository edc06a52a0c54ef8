"""Tiles: the sizes that follow from a problem once a schedule has said how many rows and keys a tile has."""

from dataclasses import dataclass
from math import gcd

from cute_fa4.dtypes import elements_in

from .chip import SWIZZLE_BYTES, TMEM_COLUMNS, align_down, align_up
from .problem import Problem

MMA_LANES = 128  # rows of D of one tcgen05.mma
ROWS_PER_Q_TILE = 128  # lanes of tensor memory: a softmax thread owns a row
KEYS_PER_TILE = 128  # a softmax thread holds as many scores in registers
ROWS_OF_SWIZZLE = 8  # rows that the 128-byte swizzle permutes: the least that a box has
LINE_OF_TMA = 16  # bytes that the strides of a map are multiples of: columns of eight bits
MMA_K_BYTES = 32  # of the contraction of one tcgen05.mma
TMEM_COLUMN_BYTES = 4  # of a row
O_BUFFERS = 2  # chunks of O on their way to global memory
SLOT_ROW_BYTES = (
    256  # of a row of K in a slot of the ring, or as many as V has; the others are the rest
)


@dataclass(frozen=True)
class Tiles:
    """The tiles that a CTA works on at a time. Lengths are in elements unless the name says `_bytes` or `_columns`.

    problem        the problem that is tiled
    num_q          query tiles of a CTA, each with its own softmax warpgroup
    cta_group      CTAs that share one MMA
    BN             keys per tile
    qk_stages      parts of a K tile, each with an mbarrier: the part in its ring slot and, where K has one, the rest
    """

    problem: Problem
    num_q: int
    cta_group: int
    BN: int
    qk_stages: int

    @staticmethod
    def cut(problem: Problem, *, num_q: int, cta_group: int = 1) -> "Tiles":
        """S and O of two query tiles share the 512 columns; unsupported head dims leave S fewer than a tile."""
        granule = problem.operand.elements_in(SWIZZLE_BYTES)
        mma_k = problem.operand.elements_in(MMA_K_BYTES)
        o_columns = columns_beside_s(problem, granule)
        depth = min(
            align_up(tile_columns(problem, granule), granule),
            slot_columns(problem, granule, cta_group),
        )
        bn = min(KEYS_PER_TILE, align_down(TMEM_COLUMNS // 2 - o_columns, mma_k))
        has_rest = tile_columns(problem, granule) > depth
        return Tiles(problem, num_q, cta_group, bn, 1 + has_rest)

    # ---- rows, keys, depths

    @property
    def BM(self) -> int:
        """Query rows a CTA owns."""
        return self.num_q * self.rows_per_q_tile

    @property
    def rows_per_q_tile(self) -> int:
        return ROWS_PER_Q_TILE

    @property
    def rows_per_position(self) -> int:
        """Rows of a query position: one for each head that shares the tile."""
        return self.problem.heads_per_tile

    @property
    def pads_groups(self) -> bool:
        """A position has more rows than heads share the tile; the remaining rows are padding."""
        return self.rows_per_position > self.problem.heads_per_tile

    @property
    def q_box_rows(self) -> int:
        """Rows of one copy of Q."""
        return self.rows_per_q_tile

    @property
    def positions_per_cta(self) -> int:
        """Query positions of a CTA: with packed groups a position has a row for each head."""
        return self.BM // self.rows_per_position

    @property
    def positions_per_block(self) -> int:
        """Query positions of the CTAs that share an MMA: they take the same key tiles, and are scheduled together."""
        return self.positions_per_cta * self.cta_group

    @property
    def bits(self) -> int:
        """Bits of an element that an MMA multiplies."""
        return self.problem.operand.bits

    def tmem_columns_of(self, elements: int) -> int:
        """Columns of tensor memory that so many elements of a row take."""
        return self.bytes_of(elements) // TMEM_COLUMN_BYTES

    def bytes_of(self, elements: int) -> int:
        """Bytes of so many elements that an MMA multiplies."""
        return self.problem.operand.bytes_of(elements)

    @property
    def slot_dtype(self) -> str:
        """The dtype of K and V in the slots of the ring, as the MMA warp reads them."""
        return self.problem.stored_dtype

    @property
    def swizzle_granule(self) -> int:
        """Elements in one swizzle span: the depth chunk that one TMA box and one smem row hold."""
        return self.problem.operand.elements_in(SWIZZLE_BYTES)

    @property
    def kv_span_bytes(self) -> int:
        """Bytes of the swizzle span of K and V in the ring."""
        return SWIZZLE_BYTES

    @property
    def kv_granule(self) -> int:
        """The same for elements of K and V as they are stored."""
        return elements_in(self.problem.stored_dtype, self.kv_span_bytes)

    @property
    def o_granule(self) -> int:
        """The same for elements of O."""
        return elements_in(self.problem.o_dtype, SWIZZLE_BYTES)

    @property
    def tile_depth(self) -> int:
        """Columns of Q and K in shared memory, as tile_columns counts them."""
        return tile_columns(self.problem, self.swizzle_granule)

    @property
    def padded_qk_depth(self) -> int:
        return align_up(self.tile_depth, self.swizzle_granule)

    @property
    def padded_ov_depth(self) -> int:
        return align_up(self.problem.ov_depth, self.swizzle_granule)

    @property
    def slot_qk_depth(self) -> int:
        """Columns of K that lie in a slot of the ring."""
        here = slot_columns(self.problem, self.swizzle_granule, self.cta_group)
        return min(self.padded_qk_depth, here)

    @property
    def rest_qk_depth(self) -> int:
        """Columns of K that do not: 0 for most depths."""
        return self.padded_qk_depth - self.slot_qk_depth

    @property
    def rope_columns(self) -> int:
        """Columns of K that come from a separate tensor, padded: all of the rest, or the last of a slot.

        Counted as qkv_dtype counts them.
        """
        own = align_up(self.problem.own_depth, self.swizzle_granule)
        return align_up(self.tile_depth - own, self.swizzle_granule)

    @property
    def rope_box_columns(self) -> int:
        """Columns of one copy of them: a line of the swizzle, as they are stored."""
        return elements_in(self.problem.rope_stored_dtype, SWIZZLE_BYTES)

    @property
    def own_qk_depth(self) -> int:
        """Columns of K in a slot that come from K itself: all except those in a separate tensor.

        Padded: after less than one span of 8-bit columns there is a gap, which no product contracts.
        """
        return self.slot_qk_depth - (0 if self.rest_qk_depth else self.rope_columns)

    @property
    def own_steps(self) -> int:
        """MMA steps that contract them; after the last one of a padded depth comes the gap, or the rest."""
        return align_up(self.problem.own_depth, self.MMA_K) // self.MMA_K

    @property
    def q_comes_in_parts(self) -> bool:
        """A query tile takes a second copy for the columns that meet columns of K in a separate tensor.

        They, too, are in a separate tensor, or a gap lies between them and the other columns.
        """
        gap = self.problem.own_depth % self.swizzle_granule != 0
        return self.problem.rope_depth > 0 and (self.problem.mixes_rope or gap)

    @property
    def o_columns_padded(self) -> int:
        """Tensor-memory columns that S leaves to O: those of a slot of the ring; with 8 bits, those of V."""
        return columns_beside_s(self.problem, self.swizzle_granule)

    @property
    def k_box_rows(self) -> int:
        """Rows of one copy of K: a CTA's, or their greatest common divisor with a page: no box crosses one."""
        page = self.problem.page_size
        return gcd(self.k_rows_per_cta, page) if page else self.k_rows_per_cta

    @property
    def rope_box_rows(self) -> int:
        """The same for columns of K with separate pages."""
        page = self.problem.rope_page_size
        return gcd(self.k_rows_per_cta, page) if page else self.k_rows_per_cta

    @property
    def gathers_rope(self) -> bool:
        """Their rows are looked up one by one, as gathers_rows says of K and V."""
        return self.problem.rope_page_size % ROWS_OF_SWIZZLE != 0

    @property
    def v_box_rows(self) -> int:
        """The same for V; a CTA has every row of its tile."""
        page = self.problem.page_size
        return gcd(self.BN, page) if page else self.BN

    @property
    def gathers_rows(self) -> bool:
        """Rows are looked up one by one: boxes would be smaller than the eight rows that the swizzle permutes.

        With left padding a tile begins anywhere in a page.
        """
        page = self.problem.page_size
        return page > 0 and (page % ROWS_OF_SWIZZLE != 0 or self.problem.cache_leftpad)

    @property
    def tiles_of_look_up(self) -> int:
        """Key tiles whose pages a warp looks up at once, in as many lanes as they have boxes."""
        return 1

    @property
    def folds_pages(self) -> bool:
        """Pages are smaller than a tile, and their rows begin where one copy can bring them."""
        return self.problem.fold_pages and not self.gathers_rows and self.v_box_rows < self.BN

    @property
    def pages_come_whole(self) -> bool:
        """One copy a page brings all depth chunks; they lie side by side in the tile (layouts/page_tiles.py).

        Half of the columns of V are one chunk: two CTAs that share an MMA have nothing to fold there.
        """
        depths = (self.problem.qk_depth, self.problem.ov_depth)
        return (
            self.folds_pages
            and self.cta_group == 1
            and all(depth % self.swizzle_granule == 0 for depth in depths)
            and not self.rest_qk_depth
            and not self.problem.rope_depth
            and self.padded_qk_depth > self.swizzle_granule
        )

    # ---- products

    @property
    def MMA_M(self) -> int:
        return self.rows_per_q_tile * self.cta_group

    @property
    def MMA_K(self) -> int:
        """Contraction depth of one tcgen05.mma: 32 bytes."""
        return self.problem.operand.elements_in(MMA_K_BYTES)

    @property
    def BK0(self) -> int:
        """Depth of Q K^T over what is in a slot; rest_qk_depth follows, where K has a rest."""
        return self.slot_qk_depth

    @property
    def k_copy_columns(self) -> int:
        """Columns of one copy of K."""
        return min(self.BK0, self.own_qk_depth)

    @property
    def BK1(self) -> int:
        """Keys of one P V contraction: V is loaded whole."""
        return self.BN

    @property
    def qk_mma_shape(self) -> tuple[int, int, int]:
        """(M, N, K) of S = Q K^T; K is the depth rounded up to MMA steps, not to the padded tile; gaps count."""
        return (self.MMA_M, self.BN, align_up(self.tile_depth, self.MMA_K))

    @property
    def pv_mma_shape(self) -> tuple[int, int, int]:
        """(M, N, K) of O += P V; N is the depth rounded up to the columns that an MMA asks for.

        PTX ISA, "matrix shape": multiples of 16 for M = 128, of 32 for the M = 256 of two CTAs.
        """
        return (self.MMA_M, align_up(self.problem.ov_depth, 16 * self.cta_group), self.BN)

    @property
    def k_rows_per_cta(self) -> int:
        return self.BN // self.cta_group

    @property
    def v_cols_of_mma(self) -> int:
        """Columns of V that the MMA takes from a CTA; those of the next CTA follow them."""
        return align_up(self.problem.ov_depth, 16 * self.cta_group) // self.cta_group

    @property
    def v_cols_per_cta(self) -> int:
        """Columns of V that a CTA loads: the same, padded to whole swizzle spans."""
        return align_up(self.v_cols_of_mma, self.swizzle_granule)

    @property
    def p_first_part(self) -> int:
        """Keys of P handed over first: three quarters when the MMA steps divide by four, else half."""
        steps = self.BN // self.MMA_K
        return (steps // 4 * 3 if steps % 4 == 0 else steps // 2) * self.MMA_K

    @property
    def s_columns(self) -> int:
        """Tensor-memory columns of one S."""
        return self.BN

    @property
    def o_columns(self) -> int:
        """Tensor-memory columns of one O."""
        return self.padded_ov_depth

    @property
    def p_columns(self) -> int:
        """Tensor-memory columns of one P: two 16-bit values a column."""
        return self.tmem_columns_of(self.BN)

    # ---- bytes of tiles, and what a barrier expects

    @property
    def q_tile_bytes(self) -> int:
        return self.bytes_of(self.rows_per_q_tile * self.padded_qk_depth)

    @property
    def q_bytes(self) -> int:
        return self.num_q * self.q_tile_bytes

    @property
    def kv_slot_bytes(self) -> int:
        """A slot of the ring holds a CTA's part of a K tile, or of a V tile."""
        k_elements = self.k_rows_per_cta * self.slot_qk_depth
        return self.bytes_of(max(k_elements, self.BN * self.v_cols_per_cta))

    @property
    def o_chunk_bytes(self) -> int:
        """One depth chunk of a query tile on its way to global memory."""
        return self.rows_per_q_tile * SWIZZLE_BYTES

    @property
    def o_buffers(self) -> int:
        """Chunks of O on their way to global memory; two Q tiles and a rest of K leave room for one.

        The same holds for 8-bit K of two spans: a slot is as large as with 16 bits, and keys may have scales.
        """
        two_spans = self.problem.is_quantized and self.padded_qk_depth > self.swizzle_granule
        crowded = self.rest_qk_depth or two_spans
        return 1 if crowded and self.num_q == 2 else O_BUFFERS

    @property
    def k_rests(self) -> int:
        """Places for the rest of a K tile."""
        return 1

    @property
    def order_of_stages(self) -> tuple[int, ...]:
        """In which order S is made of the parts of K: 0 in a slot, 1 the rest, if there is one."""
        return tuple(range(1 + (self.rest_qk_depth > 0)))

    @property
    def k_rest_bytes(self) -> int:
        """The rest of a K tile."""
        return self.bytes_of(self.k_rows_per_cta * self.rest_qk_depth)

    @property
    def k_stage_bytes(self) -> int:
        """Bytes of K in a slot; TMA counts the whole box, also what it fills with zeros."""
        return self.bytes_of(self.k_rows_per_cta * self.BK0)

    @property
    def bytes_of_stages(self) -> tuple[int, ...]:
        """Bytes of each part of K."""
        rest = (self.k_rest_bytes,) if self.rest_qk_depth else ()
        return (self.k_stage_bytes, *rest)

    @property
    def v_bytes(self) -> int:
        return self.bytes_of(self.BN * self.v_cols_per_cta)

    # ---- refusals that families share

    def rope_refusals(self) -> list[str]:
        """Why columns of K in a separate tensor cannot be loaded into these tiles."""
        why, problem, granule = [], self.problem, self.swizzle_granule
        if not problem.rope_depth:
            return why
        quantized = problem.is_quantized
        fits = problem.own_depth % (LINE_OF_TMA if quantized else granule) == 0
        fits = fits and not (quantized and problem.own_depth > granule)
        if self.rope_columns > granule or not fits:
            most = self.rope_box_columns if problem.mixes_rope else granule
            before = (
                f"a multiple of {LINE_OF_TMA} up to {granule}"
                if quantized
                else f"a multiple of {granule}"
            )
            why.append(
                f"rope_depth={problem.rope_depth} of qk_depth={problem.qk_depth}: they have a swizzle span, "
                f"{most} elements, after {problem.own_depth} in spans of {granule}: use up to {most} after {before}"
            )
        return why


def tile_columns(problem: Problem, granule: int) -> int:
    """Columns of Q and K in shared memory, in units of qkv_dtype: a 16-bit column beside 8-bit ones counts as two.

    Columns in a separate tensor begin with a chunk of `granule`: there may be a gap before them.
    """
    if not problem.rope_depth:
        return problem.qk_depth
    each = 2 if problem.mixes_rope else 1
    return align_up(problem.own_depth, granule) + each * problem.rope_depth


def slot_columns(problem: Problem, granule: int, cta_group: int = 1) -> int:
    """Columns of a slot of the ring, in chunks of `granule`; CTAs that share an MMA have fewer rows of K in it."""
    of_k = min(
        align_up(tile_columns(problem, granule), granule),
        cta_group * problem.operand.elements_in(SLOT_ROW_BYTES),
    )
    return max(of_k, align_up(problem.ov_depth, granule))


def columns_beside_s(problem: Problem, granule: int) -> int:
    """Tensor-memory columns that S leaves to O: as many as a slot has; with 8 bits those of V, as a slot has more."""
    if problem.is_quantized:
        return align_up(problem.ov_depth, granule)
    return slot_columns(problem, granule)
