"""FA4Config: every compile-time choice of an SM100 attention kernel, and the reasons a choice is refused.

The object is the whole compile key, and the only place where a derived number is computed: the load, MMA,
softmax, correction and store roles, the shared-memory map, the tensor-memory map and the host all read the same
property. A second spelling of one of these formulas is the classic way to a kernel that hangs.

    FA4Config(qk_depth=128, mask=masks.Causal())    bf16, two query tiles of 128 rows

    tensor memory, 512 columns of 128 lanes            shared memory, 227 KiB
    0        BN       2 BN       2 BN + ov             Q0 | Q1 | ring of kv slots | two chunks of O | row scale
    | S0 P0  |  S1 P1  |   O0   |   O1   |             | row bias | work queue | mbarriers

Derivation: depth and dtype give the padded depth; TMEM gives BN; what shared memory is left gives the ring.
"""

from dataclasses import dataclass, field, replace
from hashlib import sha256
from math import gcd

from . import masks
from .mha2q.warp_roles import WarpRoles
from .score_mods import ScoreMod
from .sync import barriers

SMEM_CAPACITY_BYTES = 228 * 1024 - 1024  # an SM has 228 KiB, 1 KiB of it reserved for the system
SMEM_BASE_ALIGNMENT = 1024  # the 128-byte swizzle repeats every 8 rows of 128 bytes
TMEM_COLUMNS = 512
MBARRIER_BYTES = 8
ROW_SCALE_BYTES = 2 * 128 * 4  # one f32 per softmax thread: 2 warpgroups of 128
ROW_BIAS_BYTES = ROW_SCALE_BYTES  # another
O_BUFFERS = 2  # chunks of O on their way to global memory
WORK_WORDS = 12  # Int32 of an entry of the work queue (queue.py): a multiple of four, which one instruction reads
CLAIM_ANSWER_BYTES = 16  # what clusterlaunchcontrol.try_cancel writes
WORK_QUEUE_BYTES = barriers.WORK_ENTRIES * WORK_WORDS * 4 + CLAIM_ANSWER_BYTES
TMEM_ADDRESS_BYTES = 4

DTYPE_BYTES = {"bf16": 2, "fp16": 2, "e4m3": 1, "e5m2": 1, "f32": 4}
DEPTHS = (64, 72, 80, 96, 128)
SINK_DTYPES = ("f32", "bf16", "fp16")
AUX_DTYPES = ("bf16", "fp16", "f32", "i32", "i64", "u8")
ARCHES = ("sm_100a", "sm_103a")
SWIZZLE_BYTES = (128, 64, 32)


def align_up(value: int, granule: int) -> int:
    return -(-value // granule) * granule


def align_down(value: int, granule: int) -> int:
    return value // granule * granule


@dataclass(frozen=True)
class FA4Config:
    """Every compile-time choice of the forward kernel.

    Lengths are in elements unless the name says `_bytes` or `_columns`.

    qkv_dtype      "bf16" or "fp16": Q, K, V and P; "e4m3" is in the type and refused today
    o_dtype        output; None: as qkv_dtype
    qk_depth       head dim of Q and K
    ov_depth       head dim of V and O; None: as qk_depth
    num_q_heads    0: read from the tensors at run time, one compile serves every head count
    group          query heads per key/value head
    mask           which keys a query sees: masks.Full(), masks.Causal(), masks.Window(...), ...
    q_layout       "dense" (batch, seqlen, heads, depth) or "packed" (total, heads, depth) with cu_seqlens_q
    kv_layout      "dense", "packed" with cu_seqlens_k, or "paged" with a page table and page_size
    seqused_q      lengths of queries come from a tensor; rows beyond are not written
    seqused_k      lengths of keys come from a tensor; rows beyond may hold anything
    cache_excludes_new  seqused_k does not count the new tokens: keys are seqused_k plus the queries
    padded_keys    a further tensor cuts the visible keys without moving positions
    page_heads_first    pages are (num_pages, heads, page_size, depth), not (num_pages, page_size, heads, depth)
    fold_pages     a page smaller than a tile comes in one copy with all its depth chunks, where the depth is a multiple
                   of the swizzle granule; pages must begin at multiples of 8 rows
    pack_gqa       the query heads of a group share a tile: rows are (position, head of the group)
    sink           a logit for each query head takes part in the softmax without a value
    sink_dtype     of these logits: "f32", "bf16" or "fp16"
    score_mod      a function of the scaled score, applied before the mask; None: none
    mask_mod       a function that says whether a key is visible, besides the mask; None: none
    aux            (dtype, rank) of each tensor that these functions read
    write_lse      also write the log-sum-exp, f32, natural logarithm
    arch           "sm_100a" (B200) or "sm_103a" (B300, hardware exp2 at twice the rate)
    BM             query rows a CTA owns: 256 is two tiles of 128
    bn_cap         upper limit for BN; 0: as wide as tensor memory allows
    swizzle_bytes  span of the shared-memory swizzle of Q, K, V, O
    page_size      keys per page of a paged cache; 0: contiguous K and V
    num_qk_stages  depth chunks of a K tile, each with a barrier of its own, so that the first MMA starts early;
                   0: as many as the depth has common divisors with the swizzle granule and the MMA depth
    pair_cta       two CTAs share one M=256 MMA
    rope_dtype     dtype of a rotary part appended to the depth (MLA); None: there is none
    scale_dtype    dtype of per-token scales of quantised K and V; None: there are none
    rescale_log2   the running row maximum is kept while it moves less than this (P stays below 2^rescale_log2)
    exp2_emulated  of 64 pairs of exponentials, how many the FMA units compute; None: what suits the arch
    claims         a CTA that is done takes over a block of the grid that has not started (queue.py); False: it
                   ends
    """

    qkv_dtype: str = "bf16"
    o_dtype: str | None = None
    qk_depth: int = 128
    ov_depth: int | None = None
    num_q_heads: int = 0
    group: int = 1
    mask: masks.Mask = masks.Full()
    q_layout: str = "dense"
    kv_layout: str = "dense"
    seqused_q: bool = False
    seqused_k: bool = False
    cache_excludes_new: bool = False
    padded_keys: bool = False
    page_heads_first: bool = False
    fold_pages: bool = True
    pack_gqa: bool = False
    sink: bool = False
    sink_dtype: str = "f32"
    score_mod: ScoreMod | None = None
    mask_mod: ScoreMod | None = None
    aux: tuple = ()
    write_lse: bool = False
    arch: str = "sm_100a"
    BM: int = 256
    bn_cap: int = 0
    swizzle_bytes: int = 128
    page_size: int = 0
    num_qk_stages: int = 1
    pair_cta: bool = False
    rope_dtype: str | None = None
    scale_dtype: str | None = None
    rescale_log2: float = 8.0
    exp2_emulated: int | None = None
    claims: bool = True
    warps: WarpRoles = field(default_factory=WarpRoles)

    def __post_init__(self):
        if self.o_dtype is None:
            object.__setattr__(self, "o_dtype", self.qkv_dtype)
        if self.ov_depth is None:
            object.__setattr__(self, "ov_depth", self.qk_depth)
        if self.exp2_emulated is None:
            pairs = 18 if self.qk_depth <= 64 else 16  # docs/decisions/0003
            object.__setattr__(self, "exp2_emulated", pairs if self.arch == "sm_100a" else 0)

    @property
    def causal(self) -> bool:
        return isinstance(self.mask, masks.Causal)

    @property
    def unequal_blocks(self) -> bool:
        """Query blocks of a sequence see different numbers of keys; the first ones, usually, the fewest."""
        return self.mask != masks.Full()

    # ---- operands --------------------------------------------------------------------------------------------

    @property
    def heads_per_tile(self) -> int:
        """Query heads whose rows share a tile."""
        return self.group if self.pack_gqa else 1

    @property
    def positions_per_cta(self) -> int:
        """Query positions of a CTA."""
        return self.BM // self.heads_per_tile

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

    @property
    def kv_box_rows(self) -> int:
        """Key rows of one copy: the tile, or a page that is smaller."""
        return min(self.BN, self.page_size) if self.page_size else self.BN

    @property
    def kv_boxes(self) -> int:
        return self.BN // self.kv_box_rows

    @property
    def pages_come_whole(self) -> bool:
        """One copy a page brings all depth chunks; they lie side by side in the tile (layouts/page_tiles.py)."""
        folds = (
            self.qk_depth % self.swizzle_granule == 0 and self.ov_depth % self.swizzle_granule == 0
        )
        return (
            self.fold_pages
            and self.kv_boxes > 1
            and folds
            and self.padded_qk_depth > self.swizzle_granule
        )

    # ---- tiles -----------------------------------------------------------------------------------------------

    @property
    def dtype_bytes(self) -> int:
        return DTYPE_BYTES[self.qkv_dtype]

    @property
    def swizzle_granule(self) -> int:
        """Elements in one swizzle span: the depth chunk that one TMA box and one smem row hold."""
        return self.swizzle_bytes // self.dtype_bytes

    @property
    def padded_qk_depth(self) -> int:
        return align_up(self.qk_depth, self.swizzle_granule)

    @property
    def padded_ov_depth(self) -> int:
        return align_up(self.ov_depth, self.swizzle_granule)

    @property
    def num_q(self) -> int:
        """Query tiles of one CTA, each with a softmax warpgroup of its own."""
        return 2 if self.BM == 256 else 1

    @property
    def cta_group(self) -> int:
        return 2 if self.pair_cta else 1

    @property
    def MMA_M(self) -> int:
        return 256 if self.pair_cta else 128

    @property
    def MMA_K(self) -> int:
        """Contraction depth of one tcgen05.mma: 32 bytes."""
        return 32 // self.dtype_bytes

    @property
    def BN(self) -> int:
        """Keys per tile: S and O of every query tile share the 512 columns, S gets what O leaves."""
        bn = min(256, align_down(TMEM_COLUMNS // 2 - self.o_columns_padded, self.MMA_K))
        if self.bn_cap:
            bn = min(bn, align_down(self.bn_cap, self.MMA_K))
        if self.page_size and bn % self.page_size and self.page_size % bn:
            bn = 1 << (bn.bit_length() - 1)  # pages and tiles must nest
        return bn

    @property
    def o_columns_padded(self) -> int:
        return max(self.padded_qk_depth, self.padded_ov_depth)

    @property
    def rows_per_q_tile(self) -> int:
        return self.BM // self.num_q

    @property
    def BK0(self) -> int:
        """Depth of one Q K^T stage."""
        return self.padded_qk_depth // self.qk_stages

    @property
    def BK1(self) -> int:
        """Keys of one P V contraction: V is loaded whole."""
        return self.BN

    @property
    def qk_stages(self) -> int:
        if self.num_qk_stages:
            return self.num_qk_stages
        return gcd(self.padded_qk_depth // self.swizzle_granule, self.padded_qk_depth // self.MMA_K)

    @property
    def qk_mma_shape(self) -> tuple[int, int, int]:
        """(M, N, K) of S = Q K^T; K is the depth rounded up to MMA steps, not to the padded tile."""
        return (self.MMA_M, self.BN, align_up(self.qk_depth, self.MMA_K))

    @property
    def pv_mma_shape(self) -> tuple[int, int, int]:
        """(M, N, K) of O += P V; N is the depth rounded up to the 16 columns an M=128 MMA asks for."""
        return (self.MMA_M, align_up(self.ov_depth, 16), self.BN)

    @property
    def k_rows_per_cta(self) -> int:
        return self.BN // self.cta_group

    @property
    def v_cols_per_cta(self) -> int:
        return self.padded_ov_depth // self.cta_group

    @property
    def p_first_part(self) -> int:
        """Keys of P handed over first: three quarters when the MMA steps divide by four, else half."""
        steps = self.BN // self.MMA_K
        return (steps // 4 * 3 if steps % 4 == 0 else steps // 2) * self.MMA_K

    # ---- tensor memory ----------------------------------------------------------------------------------------

    @property
    def tmem_s(self) -> tuple[int, ...]:
        """First column of S0, S1."""
        width = self.BN + (self.p_columns if self.p_apart else 0)
        return tuple(i * width for i in range(self.num_q))

    @property
    def tmem_p(self) -> tuple[int, ...]:
        """First column of P0, P1: behind S if there is room, otherwise over S."""
        return tuple(column + (self.BN if self.p_apart else 0) for column in self.tmem_s)

    @property
    def p_columns(self) -> int:
        """Columns of one P: two 16-bit values a column."""
        return self.BN * self.dtype_bytes // 4

    @property
    def p_apart(self) -> bool:
        """P has columns of its own, so that the next S can be made while P is still read (p_beside_s.py)."""
        return self.num_q * (self.BN + self.p_columns + self.padded_ov_depth) <= TMEM_COLUMNS

    @property
    def tmem_o(self) -> tuple[int, ...]:
        first = self.num_q * (self.BN + (self.p_columns if self.p_apart else 0))
        return tuple(first + i * self.padded_ov_depth for i in range(self.num_q))

    @property
    def tmem_columns_used(self) -> int:
        return self.tmem_o[-1] + self.padded_ov_depth

    @property
    def tmem_columns(self) -> int:
        """Columns to allocate: a power of two from 32."""
        return max(32, 1 << (self.tmem_columns_used - 1).bit_length())

    # ---- shared memory and the ring ---------------------------------------------------------------------------

    @property
    def q_tile_bytes(self) -> int:
        return self.rows_per_q_tile * self.padded_qk_depth * self.dtype_bytes

    @property
    def q_bytes(self) -> int:
        return self.num_q * self.q_tile_bytes

    @property
    def kv_slot_bytes(self) -> int:
        """A slot holds a whole K tile or a whole V tile."""
        return (
            self.BN
            * max(self.padded_qk_depth, self.padded_ov_depth)
            * self.dtype_bytes
            // self.cta_group
        )

    @property
    def kv_slots(self) -> int:
        """Slots of the ring that K and V share, in the order K0 V0 K1 V1 ...

        One ring instead of one each: an odd slot is not lost.
        """
        fixed = self.q_bytes + self.fixed_bytes + MBARRIER_BYTES * barriers.fixed_mbarriers(self)
        per_slot = self.kv_slot_bytes + MBARRIER_BYTES * barriers.mbarriers_per_kv_slot(self)
        return max(0, (SMEM_CAPACITY_BYTES - fixed) // per_slot)

    @property
    def o_chunk_bytes(self) -> int:
        """One depth chunk of a query tile on its way to global memory."""
        return self.rows_per_q_tile * self.swizzle_bytes

    @property
    def fixed_bytes(self) -> int:
        """Shared memory of everything but Q, the ring and the mbarriers."""
        rows = ROW_SCALE_BYTES + ROW_BIAS_BYTES
        return O_BUFFERS * self.o_chunk_bytes + rows + WORK_QUEUE_BYTES + TMEM_ADDRESS_BYTES

    @property
    def num_mbarriers(self) -> int:
        return barriers.fixed_mbarriers(self) + self.kv_slots * barriers.mbarriers_per_kv_slot(self)

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of one CTA, from its 1024-byte aligned base."""
        tiles = self.q_bytes + self.kv_slots * self.kv_slot_bytes
        return tiles + self.fixed_bytes + MBARRIER_BYTES * self.num_mbarriers

    # ---- bytes a barrier expects ------------------------------------------------------------------------------

    @property
    def k_stage_bytes(self) -> int:
        """Bytes of one depth chunk of K; TMA counts the whole box, also what it fills with zeros."""
        return self.k_rows_per_cta * self.BK0 * self.dtype_bytes

    @property
    def v_bytes(self) -> int:
        return self.BN * self.v_cols_per_cta * self.dtype_bytes

    # ---- refusals ---------------------------------------------------------------------------------------------

    def refusals(self) -> list[str]:
        """Why this variant cannot run: every reason, each with value, limit and remedy. Empty: it runs."""
        why = self._impossible()
        if why:  # the derived numbers are defined only for values that make sense
            return why
        return self._over_capacity() + self._not_built()

    def _impossible(self) -> list[str]:
        why = []
        for name in ("qkv_dtype", "o_dtype"):
            if getattr(self, name) not in DTYPE_BYTES:
                why.append(
                    f"{name}={getattr(self, name)!r} is not a dtype: use one of {', '.join(DTYPE_BYTES)}"
                )
        if self.sink_dtype not in SINK_DTYPES:
            why.append(
                f"sink_dtype={self.sink_dtype!r} is no dtype of sinks: use one of {', '.join(SINK_DTYPES)}"
            )
        for dtype, rank in self.aux:
            if dtype not in AUX_DTYPES or rank < 1:
                why.append(
                    f"aux=({dtype!r}, {rank}): use a rank of at least 1 and one of {', '.join(AUX_DTYPES)}"
                )
        for name in ("rope_dtype", "scale_dtype"):
            if getattr(self, name) is not None and getattr(self, name) not in DTYPE_BYTES:
                why.append(
                    f"{name}={getattr(self, name)!r} is not a dtype: use None or one of {', '.join(DTYPE_BYTES)}"
                )
        if self.arch not in ARCHES:
            why.append(
                f"arch={self.arch!r} has no tcgen05 kernel here: use one of {', '.join(ARCHES)}"
            )
        if self.swizzle_bytes not in SWIZZLE_BYTES:
            why.append(f"swizzle_bytes={self.swizzle_bytes} is no swizzle span: use 128, 64 or 32")
        if self.BM not in (32, 64, 128, 256):
            why.append(f"BM={self.BM} is no query tile: use 256 (two tiles), 128, 64 or 32")
        for name in ("qk_depth", "ov_depth", "group"):
            if getattr(self, name) < 1:
                why.append(f"{name}={getattr(self, name)} must be at least 1")
        for name in ("num_q_heads", "bn_cap", "page_size", "num_qk_stages"):
            if getattr(self, name) < 0:
                why.append(
                    f"{name}={getattr(self, name)} must not be negative: 0 means that it is not set"
                )
        if self.q_layout not in ("dense", "packed"):
            why.append(
                f"q_layout={self.q_layout!r} is no layout of queries: use 'dense' or 'packed'"
            )
        if self.kv_layout not in ("dense", "packed", "paged"):
            why.append(
                f"kv_layout={self.kv_layout!r} is no layout of keys: use 'dense', 'packed' or 'paged'"
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
        if self.cache_excludes_new and not self.seqused_k:
            why.append(
                "cache_excludes_new=True with seqused_k=False: there is no cache length: use seqused_k=True"
            )
        if self.pack_gqa and (self.group < 1 or 128 % self.group):
            why.append(
                f"pack_gqa=True with group={self.group}: a tile of 128 rows holds whole groups: use a group that "
                f"divides 128, or pack_gqa=False"
            )
        if not why and self.num_q_heads % self.group:
            why.append(
                f"num_q_heads={self.num_q_heads} is no multiple of group={self.group}: each key/value head "
                f"serves the same number of query heads"
            )
        if not 0 <= self.exp2_emulated <= 64:
            why.append(f"exp2_emulated={self.exp2_emulated} of 64 pairs: use 0 to 64")
        if not 0 <= self.rescale_log2 <= 15:
            why.append(
                f"rescale_log2={self.rescale_log2}: P grows to 2^rescale_log2 and must fit fp16: use 0 to 15"
            )
        return why

    def _over_capacity(self) -> list[str]:
        why = []
        if self.BN < 64:
            why.append(
                f"S has room for BN={self.BN} keys beside O of {self.o_columns_padded} columns, 64 are "
                f"needed: head dims up to {TMEM_COLUMNS // 2 - 64} fit, larger ones need a kernel of their own"
            )
            return why
        if self.padded_qk_depth % self.qk_stages or self.BK0 % self.swizzle_granule:
            why.append(
                f"num_qk_stages={self.num_qk_stages} cuts the padded depth {self.padded_qk_depth} inside a "
                f"swizzle span of {self.swizzle_granule} elements: use a divisor of "
                f"{self.padded_qk_depth // self.swizzle_granule}"
            )
        if self.tmem_columns_used > TMEM_COLUMNS:
            why.append(
                f"S and O need {self.tmem_columns_used} tensor-memory columns, an SM has {TMEM_COLUMNS}: "
                f"lower bn_cap (BN is {self.BN})"
            )
        if self.kv_slots < 3:
            why.append(
                f"the ring has {self.kv_slots} slots of {self.kv_slot_bytes} bytes beside {self.q_bytes} bytes "
                f"of Q, at least 3 are needed because V of a tile is held while K of the next one arrives: "
                f"lower bn_cap (BN is {self.BN}) or the head dim"
            )
        if self.smem_bytes > SMEM_CAPACITY_BYTES:
            why.append(
                f"shared memory of {self.smem_bytes} bytes exceeds {SMEM_CAPACITY_BYTES}: lower bn_cap or BM"
            )
        page = self.page_size
        if page and (page % 8 or (self.BN % page and page % self.BN)):
            why.append(
                f"page_size={page} must be a multiple of 8 that divides BN={self.BN} or that BN divides"
            )
        if self.pages_come_whole and self.qk_stages > 1:
            why.append(
                f"num_qk_stages={self.qk_stages} with page_size={page}: a page comes with its whole depth: use "
                f"num_qk_stages=1 or fold_pages=False"
            )
        return why

    def _not_built(self) -> list[str]:
        why = []
        if self.qkv_dtype not in ("bf16", "fp16"):
            why.append(f"qkv_dtype={self.qkv_dtype!r} is not built yet: use 'bf16' or 'fp16'")
        if self.o_dtype != self.qkv_dtype:
            why.append(
                f"o_dtype={self.o_dtype!r} is not built yet for qkv_dtype={self.qkv_dtype!r}: use the same dtype"
            )
        if self.qk_depth not in DEPTHS:
            why.append(
                f"qk_depth={self.qk_depth} is not built yet: use one of {', '.join(map(str, DEPTHS))}"
            )
        if self.ov_depth != self.qk_depth:
            why.append(
                f"ov_depth={self.ov_depth} with qk_depth={self.qk_depth} is not built yet: use equal depths"
            )
        if self.BM != 256:
            why.append(f"BM={self.BM} is not built yet: use 256, two query tiles of 128 rows")
        if self.BN > 128:
            why.append(
                f"BN={self.BN} is not built yet: a softmax thread holds its BN scores in registers and has "
                f"{self.warps.softmax_registers}: use bn_cap=128"
            )
        if self.BN % 32:
            why.append(
                f"BN={self.BN} is not built yet: scores are read in batches of 32 columns: use bn_cap=128 or 64"
            )
        if self.swizzle_bytes != 128:
            why.append(
                f"swizzle_bytes={self.swizzle_bytes} is not built yet in this kernel: use 128"
            )
        if self.pair_cta:
            why.append("pair_cta=True is not built yet: use False")
        if self.rope_dtype is not None:
            why.append(f"rope_dtype={self.rope_dtype!r} is not built yet: use None")
        if self.scale_dtype is not None:
            why.append(f"scale_dtype={self.scale_dtype!r} is not built yet: use None")
        return why

    @property
    def name(self) -> str:
        """Name of the kernel in profilers and exported files: the main choices, and a hash of all of them.

        >>> FA4Config(mask=masks.Causal()).name.startswith("mha2q_bf16_d128_g1_causal_sm_100a_")
        True
        """
        flags = [type(self.mask).__name__.lower()] * (self.mask != masks.Full())
        flags += [f"page{self.page_size}"] * bool(self.page_size) + ["lse"] * self.write_lse
        parts = [
            f"mha{self.num_q}q",
            self.qkv_dtype,
            f"d{self.qk_depth}",
            f"g{self.group}",
            *flags,
            self.arch,
        ]
        return "_".join([*parts, sha256(repr(self).encode()).hexdigest()[:8]])

    def with_(self, **changes) -> "FA4Config":
        """A copy with some choices changed.

        >>> FA4Config().with_(mask=masks.Causal()).causal
        True
        """
        return replace(self, **changes)
