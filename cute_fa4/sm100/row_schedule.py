"""RowSchedule: what families share whose softmax threads own a query row each, in tiles of 128 rows.

    family       schedule    query tiles of a CTA    who shares the two softmax warpgroups
    mha2q        TwoTiles    two                     a query tile each
    mhapair      Pair        two of 256, half in each CTA    a query tile each
    mhamx        BlockScaled  two                    a query tile each
    mha1q        OneTile     one                     every second key tile each
    mhawide      WideTile    one                     there is one, with every key tile
    mhawidepair  WidePair    one of 256, half in each CTA    the same

Choices, how they are made where they are left open, and why a problem does not run: with value, limit and remedy.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar

from ..layouts.block_scales import BLOCK
from .chip import FP8_DTYPES, SMEM_CAPACITY_BYTES, SWIZZLE_BYTES, TMEM_COLUMNS
from .memory_maps import SmemMap, TmemMap
from .problem import Problem
from .tiles import ROWS_PER_Q_TILE, Tiles
from .warp_roles import WarpRoles
from .work.claims import claims_pay

DEPTHS = tuple(range(8, 129, 8))  # of V and O, and in every family of Q and K, each its own
QK_DEPTHS = tuple(range(8, 193, 8))  # of Q and K where a K tile may have a rest beside its slot
WIDE_DEPTHS = tuple(range(8, 257, 8))  # of V and O in the family for what is beyond
DEEP = tuple(range(272, 513, 16))  # of Q and K there; of V and O in two launches (calls/halves.py)
DEPTHS_OF_FP8 = tuple(range(16, 129, 16))  # rows of 8-bit elements, too, are multiples of 16 bytes
QK_DEPTHS_OF_FP8 = tuple(range(16, 257, 16))  # of Q and K where a slot has two spans of eight bits
DEEP_OF_FP8 = tuple(range(160, 257, 32))  # of V and O, of eight bits, in two launches
DTYPES_OF_16_BITS = ("bf16", "fp16")
DTYPES = (*DTYPES_OF_16_BITS, *FP8_DTYPES)
RESCALE_LOG2, RESCALE_LOG2_OF_FP8 = 8.0, 0.0


@dataclass(frozen=True)
class RowSchedule:
    """The choices that these families have in common.

    bn_cap         upper limit for BN; 0: as wide as tensor memory allows
    swizzle_bytes  span of the shared-memory swizzle of Q, K, V, O
    num_qk_stages  depth chunks of a K tile, each with a barrier of its own, so that the first MMA starts early;
                   0: as many as the depth has common divisors with the swizzle granule and the MMA depth
    rescale_log2   the running row maximum is kept while it moves less than this (P stays below 2^rescale_log2);
                   None: 8, and 0 where P has eight bits (docs/numerics.md)
    exp2_emulated  of 64 pairs of exponentials, how many the FMA units compute; None: what suits the arch
    claims         a CTA that is done takes over a block of the grid that has not started (work/queue.py); False: it
                   ends; None: as claims_pay says of the problem
    dependent_launch  the CTAs may start while the grid before them in the stream ends; they wait for it before they
                   touch what it may have written (programmatic dependent launch); None: where groups are packed or
                   keys split
    prefetch_maps  the descriptors of TMA are fetched while the CTA sets up
    warps          roles and registers
    """

    family: ClassVar[str]
    query_tiles: ClassVar[int]  # of a CTA
    qk_depths: ClassVar[tuple] = QK_DEPTHS
    qk_depths_of_fp8: ClassVar[tuple] = QK_DEPTHS_OF_FP8
    ov_depths: ClassVar[tuple] = DEPTHS
    # The reference of a row comes from the key tiles before (steps/lagged.py).
    lags: ClassVar[bool] = False
    # Keys may have scales of their own (roles/token_scales.py).
    scales_keys: ClassVar[bool] = False
    # Q and K may have scales of blocks (mhamx/).
    scales_blocks: ClassVar[bool] = False
    # How exponentials are emulated on the FMA units: "exact", in float32; "half" in f16 (steps/half_powers.py).
    exponential: ClassVar[str] = "exact"
    # Where rows are gathered a warp of its own copies V (roles/values.py).
    values_apart: ClassVar[bool] = False
    tmem_remedy: ClassVar[str] = ""  # besides a lower bn_cap
    widens_rope: ClassVar[bool] = (
        False  # columns of K with a tensor of their own, of 8 bits under 16
    )
    mixes_rope: ClassVar[bool] = False  # the same of 16 beside 8

    bn_cap: int = 0
    swizzle_bytes: int = 128
    num_qk_stages: int = 1
    rescale_log2: float | None = None
    exp2_emulated: int | None = None
    claims: bool | None = None
    dependent_launch: bool | None = None
    prefetch_maps: bool = False
    warps: WarpRoles = field(default_factory=WarpRoles)

    def tmem(self, problem: Problem) -> TmemMap:
        """Columns of tensor memory."""
        raise NotImplementedError

    def smem(self, problem: Problem) -> SmemMap:
        """Bytes of shared memory."""
        raise NotImplementedError

    def resolved(self, problem: Problem) -> "RowSchedule":
        """With every choice made that was left open."""
        changes = {}
        if self.exp2_emulated is None:
            pairs = 18 if problem.qk_depth <= 64 else 16  # docs/decisions/0002
            changes["exp2_emulated"] = pairs if problem.arch == "sm_100a" else 0
        if self.rescale_log2 is None:
            changes["rescale_log2"] = RESCALE_LOG2_OF_FP8 if problem.has_fp8 else RESCALE_LOG2
        if self.claims is None or problem.share_keys:  # shared: there is nothing to claim
            changes["claims"] = claims_pay(problem)
        if self.dependent_launch is None:
            # Decode, and what a combine kernel follows: docs/decisions/0007
            changes["dependent_launch"] = problem.pack_gqa or problem.split_keys
        return replace(self, **changes)

    def tiles(self, problem: Problem) -> Tiles:
        return Tiles.cut(
            problem,
            num_q=self.query_tiles,
            bn_cap=self.bn_cap,
            qk_stages=self.num_qk_stages,
            swizzle_bytes=self.swizzle_bytes,
        )

    def warps_of(self, problem: Problem) -> WarpRoles:
        """Which warp does what."""
        apart = self.values_apart and self.tiles(problem).gathers_rows
        return self.warps.with_values() if apart else self.warps

    def contradictions(self, problem: Problem) -> list[str]:
        """Numbers that mean nothing."""
        why = []
        if self.swizzle_bytes not in SWIZZLE_BYTES:
            why.append(f"swizzle_bytes={self.swizzle_bytes} is no swizzle span: use 128, 64 or 32")
        for name in ("bn_cap", "num_qk_stages"):
            if getattr(self, name) < 0:
                why.append(
                    f"{name}={getattr(self, name)} must not be negative: 0 means that it is not set"
                )
        if problem.pack_gqa and (problem.group < 1 or ROWS_PER_Q_TILE % problem.group):
            why.append(
                f"pack_gqa=True with group={problem.group}: a tile of {ROWS_PER_Q_TILE} rows holds whole groups: use "
                f"a group that divides {ROWS_PER_Q_TILE}, or pack_gqa=False"
            )
        if self.exp2_emulated is not None and not 0 <= self.exp2_emulated <= 64:
            why.append(f"exp2_emulated={self.exp2_emulated} of 64 pairs: use 0 to 64")
        highest, dtype = (8, "e4m3") if problem.has_fp8 else (15, "fp16")
        if self.rescale_log2 is not None and not 0 <= self.rescale_log2 <= highest:
            why.append(
                f"rescale_log2={self.rescale_log2}: P grows to 2^rescale_log2 and must fit {dtype}: use 0 to {highest}"
            )
        return why

    def refusals(self, problem: Problem) -> list[str]:
        """Why these families do not run the problem."""
        not_built = self._not_built(problem)
        if not_built and self.tiles(problem).BN < 64:
            return not_built  # head dims that nothing is built for have no tiles to speak of
        return self._over_capacity(problem) + not_built

    def _over_capacity(self, problem: Problem) -> list[str]:
        tiles = self.tiles(problem)
        if tiles.BN < 64:
            return [
                f"bn_cap={self.bn_cap}: a tile of BN={tiles.BN} keys is too small: use bn_cap=0, or 64 or more"
            ]
        why = []
        if tiles.slot_qk_depth % tiles.slot_stages or tiles.BK0 % tiles.swizzle_granule:
            why.append(
                f"num_qk_stages={self.num_qk_stages} cuts the padded depth {tiles.slot_qk_depth} inside a "
                f"swizzle span of {tiles.swizzle_granule} elements: use a divisor of "
                f"{tiles.slot_qk_depth // tiles.swizzle_granule}"
            )
        tmem = self.tmem(problem)
        if not tmem.fits:
            why.append(
                f"S, P and O need {tmem.used} tensor-memory columns, an SM has {TMEM_COLUMNS}: "
                f"lower bn_cap (BN is {tiles.BN}){self.tmem_remedy}"
            )
        smem = self.smem(problem)
        slots = smem.kv.nbytes // tiles.kv_slot_bytes
        if slots < 3:
            why.append(
                f"the ring has {slots} slots of {tiles.kv_slot_bytes} bytes beside {tiles.q_bytes} bytes "
                f"of Q, at least 3 are needed because V of a tile is held while K of the next one arrives: "
                f"lower bn_cap (BN is {tiles.BN}) or the head dim"
            )
        if smem.nbytes > SMEM_CAPACITY_BYTES:
            why.append(
                f"shared memory of {smem.nbytes} bytes exceeds {SMEM_CAPACITY_BYTES}: lower bn_cap"
            )
        return why + tiles.page_refusals() + tiles.rope_refusals()

    def _not_built(self, problem: Problem) -> list[str]:
        tiles = self.tiles(problem)
        why = problem_not_built(
            *(problem, self.qk_depths, self.ov_depths),
            qk_depths_of_fp8=self.qk_depths_of_fp8,
            takes_rope=True,
            widens_rope=self.widens_rope,
            mixes_rope=self.mixes_rope,
            scales_keys=self.scales_keys,
            scales_blocks=self.scales_blocks,
        )
        if tiles.BN > 128:
            why.append(
                f"BN={tiles.BN} is not built yet: a softmax thread holds its BN scores in registers and has "
                f"{self.warps.softmax_registers}: use bn_cap=128"
            )
        if tiles.BN % 32:
            why.append(
                f"BN={tiles.BN} is not built yet: scores are read in batches of 32 columns: use bn_cap=128 or 64"
            )
        if self.swizzle_bytes != 128:
            why.append(
                f"swizzle_bytes={self.swizzle_bytes} is not built yet in this kernel: use 128"
            )
        return why


def depths_of(qkv_dtype: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Head dims that some family runs -> (of Q and K, of V and O)."""
    if qkv_dtype in FP8_DTYPES:
        return QK_DEPTHS_OF_FP8, DEPTHS_OF_FP8 + DEEP_OF_FP8
    return (WIDE_DEPTHS + DEEP,) * 2


def in_words(depths: tuple[int, ...]) -> str:
    """
    >>> in_words(DEPTHS), in_words(WIDE_DEPTHS + DEEP)
    ('a multiple of 8 up to 128', 'a multiple of 8 up to 256 or of 16 up to 512')
    >>> in_words(DEPTHS_OF_FP8 + DEEP_OF_FP8)
    'a multiple of 16 up to 128 or of 32 up to 256'
    """
    step = depths[0]
    dense = [depth for place, depth in enumerate(depths, 1) if depth == place * step]
    words = f"a multiple of {step} up to {dense[-1]}"
    if dense[-1] == depths[-1]:
        return words
    return f"{words} or of {depths[-1] - depths[-2]} up to {depths[-1]}"


def o_dtypes(problem: Problem) -> tuple[str, ...]:
    """What O can be; parts of split keys are float32."""
    if problem.split_keys:
        return ("f32",)
    of_16_bits = DTYPES_OF_16_BITS if problem.has_fp8 else (problem.qkv_dtype,)
    return (*of_16_bits, "e4m3")


def problem_not_built(
    problem: Problem,
    qk_depths: tuple = QK_DEPTHS,
    ov_depths: tuple = DEPTHS,
    widens: bool = False,
    takes_rope: bool = False,
    scales_keys: bool = False,
    widens_rope: bool = False,
    mixes_rope: bool = False,
    scales_blocks: bool = False,
    qk_depths_of_fp8: tuple = DEPTHS_OF_FP8,
) -> list[str]:
    """What no family runs yet, whatever its tiles are.

    qk_depths, ov_depths: what this one does, of 16 bits; qk_depths_of_fp8: of eight
    widens: whether it runs keys of 8 bits under queries of 16
    takes_rope, widens_rope, mixes_rope: whether it loads columns of K from a tensor of their own, also of 8 bits under
    16, also of 16 beside 8;
    scales_keys: whether a key may have a scale of its own; scales_blocks: whether blocks of Q and K may
    """
    why = []
    if problem.block_scales and not scales_blocks:
        why.append(
            f"descales={problem.descales!r}: scales of blocks of {BLOCK} are for schedule=BlockScaled(): use it, or "
            "scales of each sequence and head"
        )
    if problem.token_scales and not scales_keys:
        why.append(
            f"descales={problem.descales!r}: scales of each key are for schedule=TwoTiles(), OneTile(), or "
            "SwappedTile(): use one of them, or scales of each sequence and head"
        )
    if problem.kv_dtype is not None and not widens:
        why.append(
            f"kv_dtype={problem.kv_dtype!r} with qkv_dtype={problem.qkv_dtype!r}: kernels for few rows widen keys: use "
            f"schedule=WidenedTile(), or queries of {problem.kv_dtype}"
        )
    if problem.qkv_dtype not in DTYPES:
        why.append(
            f"qkv_dtype={problem.qkv_dtype!r} is not built yet: use one of {', '.join(DTYPES)}"
        )
    outputs = o_dtypes(problem)
    if problem.o_dtype not in outputs:
        why.append(
            f"o_dtype={problem.o_dtype!r} is not built yet for qkv_dtype={problem.qkv_dtype!r}: use "
            f"{' or '.join(map(repr, outputs))}"
        )
    if problem.o_dtype in FP8_DTYPES and problem.ov_depth % 16:
        why.append(
            f"o_dtype={problem.o_dtype!r} with ov_depth={problem.ov_depth}: rows of 8-bit elements are multiples of 16 "
            f"bytes: use a multiple of 16, or o_dtype={outputs[0]!r}"
        )
    of_qk, of_ov = (
        (qk_depths, ov_depths) if not problem.has_fp8 else (qk_depths_of_fp8, DEPTHS_OF_FP8)
    )
    if problem.mixes_rope and mixes_rope:  # rope_refusals of the tiles say which columns
        of_qk = QK_DEPTHS
    for name, depths in (("qk_depth", of_qk), ("ov_depth", of_ov)):
        if getattr(problem, name) not in depths:
            why.append(f"{name}={getattr(problem, name)} is not built yet: use {in_words(depths)}")
    if problem.latent:
        why.append("latent=True: only kernels that read V from K do: use schedule=LatentTile()")
    if problem.rope_depth and not takes_rope:
        why.append(
            f"rope_depth={problem.rope_depth}: kernels for few rows load K from one tensor: use schedule=OneTile()"
        )
    if problem.rope_depth and problem.has_fp8:
        one_dtype = problem.rope_stored_dtype == problem.qkv_dtype
        if not (mixes_rope and (problem.mixes_rope or one_dtype)):
            why.append(
                f"rope_depth={problem.rope_depth} with qkv_dtype={problem.qkv_dtype!r}, rope_dtype="
                f"{problem.rope_dtype!r} is not built yet: use rope_dtype={problem.qkv_dtype!r}, 'bf16' or 'fp16' "
                "with schedule=TwoTiles() or OneTile(), or qkv_dtype='bf16' or 'fp16'"
            )
    elif problem.rope_dtype is not None and not widens_rope:
        why.append(
            f"rope_dtype={problem.rope_dtype!r} is not built yet in this family: use None, or e4m3 with "
            "schedule=RopeTile()"
        )
    if problem.scale_dtype is not None and not (problem.scales_rope and widens_rope):
        why.append(
            f"scale_dtype={problem.scale_dtype!r} with rope_dtype={problem.rope_dtype!r} is not built yet: use None, "
            f"or 'f32' with rope_dtype {' or '.join(FP8_DTYPES)} and schedule=RopeTile()"
        )
    return why
