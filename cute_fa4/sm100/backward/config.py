"""BackwardConfig: the compile-time choices of the kernels of the backward pass, and what follows from them.

    one tile of 128 x 128 scores             owner "queries"                owner "keys", transposed
    own tiles, held by a CTA                 Q, dO                          K, V
    other tiles, through a ring              K, V                           Q, dO
    two products of own and other            S = Q K^T,  dP = dO V^T        S = K Q^T,  dP = V dO^T
    sums in tensor memory                    dQ += dS K                     dV += P dO,  dK += dS Q

Both have the same roles, so one set of files serves both (owner.py).
"""

from dataclasses import dataclass, replace
from hashlib import sha256

from ...dtypes import BF16, UNQUANTIZED, elements_in
from ..blueprint import choices, naming, tuning
from ..blueprint.bands import Full, Mask, mask_fact
from ..blueprint.chip import SMEM_CAPACITY_BYTES, SWIZZLE_BYTES, align_up
from ..blueprint.listed import TILE_BITS  # noqa: F401  (listed.py)
from ..blueprint.score_mods import ScoreMod
from ..traced.shared import DISTANCES, sharing
from ..traced.trace import Element
from . import subtracted_sizes
from .joint import DEPTH, JointOwner
from .owner import GRANULE, STATS, Owner

MOST_DEPTH = 256


@dataclass(frozen=True)
class BackwardConfig:
    """Every compile-time choice of the backward pass; sizes, strides and the scale are bound at each call.

    dtype      "bf16" or "fp16", of q, k, v, o and do
    depth      head dim of q and k, a multiple of 8 up to 256
    depth_v    head dim of v and o, a multiple of 8 up to 256
    packed     tensors are (total, heads, depth) with offsets, not (batch, seqlen, heads, depth)
    used       packed sequences have lengths of their own, up to where the next one begins, and a limit of keys
    mask       a kind of mask, whose sizes are bound at each call
    score_mod  the function of a score that the forward pass had, which has a derivative
    mask_mod   the function that hid keys there
    aux        (dtype, rank) of the tensors that both read
    dlse       the log-sum-exp has a gradient, too
    accumulate dQ, dK and dV are added to float32 tensors; otherwise they are stored with the dtype
    listed     the forward pass had lists of key blocks: each CTA has a list of tiles of the other side (listed.py)
    wanted     numbers of the aux tensors whose gradients are computed; not empty: they instead of dQ, dK and dV
    arch       "sm_100a" or "sm_103a"
    pairs      pairs of CTAs share the MMAs of the kernels that can (Owner.ctas, joint); None: as the tuning table says.
               Calls with a score_mod, lists or wanted tensors have none: False then
    joint      one kernel makes all gradients (joint.py), where it can; None: as the tuning table says
    exp2_emulated  of 64 pairs of exponentials, so many on the FMA units; None: as the tuning table says
    """

    dtype: str
    depth: int
    depth_v: int
    packed: bool = False
    used: bool = False
    mask: Mask = Full()
    score_mod: ScoreMod | None = None
    mask_mod: ScoreMod | None = None
    aux: tuple[tuple[str, int], ...] = ()
    dlse: bool = False
    accumulate: bool = False
    listed: bool = False
    wanted: tuple[int, ...] = ()
    arch: str = "sm_100a"
    pairs: bool | None = None
    joint: bool | None = None
    exp2_emulated: int | None = None

    def __post_init__(self):
        facts = {"arch": self.arch, "head_dim": self.depth, "head_dim_v": self.depth_v}
        mask = mask_fact(self.mask)
        if self.joint is None:
            chosen = self.pairs is not False and tuning.choose("backward_joint", mask=mask, **facts)
            object.__setattr__(self, "joint", chosen)
        object.__setattr__(self, "joint", self.joint and self.can_be_joint)
        if self.joint:
            object.__setattr__(self, "pairs", False)
        if self.pairs is None:
            object.__setattr__(self, "pairs", tuning.choose("backward_pairs", mask=mask, **facts))
        plain = self.score_mod is None and not self.listed and not self.wanted
        owners = self.owner("queries"), *self.owners_of_keys
        object.__setattr__(self, "pairs", self.pairs and plain and any(x.ctas > 1 for x in owners))
        if self.exp2_emulated is None:
            facts = {"arch": self.arch, "head_dim": self.depth, "maximum": "exact"}
            pairs = tuning.choose("exp2_emulated", family=choices.BACKWARD, **facts)
            # fp16 rounds P less than the FMA units do.
            object.__setattr__(self, "exp2_emulated", pairs * (self.dtype == BF16.name))

    def refusals(self) -> list[str]:
        """Reasons why no such kernel exists, each with value and remedy."""
        why = []
        if self.dtype not in UNQUANTIZED:
            why.append(f"dtype={self.dtype!r}: use {' or '.join(map(repr, UNQUANTIZED))}")
        for name in ("depth", "depth_v"):
            value = getattr(self, name)
            if not 0 < value <= MOST_DEPTH or value % 8:
                why.append(f"{name}={value}: use a multiple of 8 from 8 to {MOST_DEPTH}")
        if self.used and not self.packed:
            why.append("used=True with packed=False: use packed=True")
        if self.listed and self.mask != Full():
            why.append(
                f"listed=True with mask={self.mask!r}: lists take the place of a mask: use Full()"
            )
        scores = self.owner("scores")
        if self.wanted and scores.smem.nbytes > SMEM_CAPACITY_BYTES:
            why.append(
                f"wanted={self.wanted}: score_mod reads {scores.tables} elements of them by distance, whose sums take "
                f"{scores.smem.distances.nbytes} bytes of the {SMEM_CAPACITY_BYTES} of shared memory, beside "
                f"{scores.smem.own.nbytes + scores.smem.ring.nbytes} for the tiles of head dims {self.depth} and "
                f"{self.depth_v}: ask for fewer of them at a time"
            )
        if self.score_mod is not None and self.score_mod.without_slope:
            why.append(
                f"score_mod={self.score_mod.without_slope}: it handles values of the compiler (cutlass), which have no "
                "derivative: write it with operators and functions of torch, or give ScoreMod.of its backward="
            )
        elif self.wanted and not self.summed:
            why.append(
                f"wanted={self.wanted}: score_mod depends on no element of them: leave them out, their gradients are 0"
            )
        return why

    @property
    def summed(self) -> list[tuple[int, Element, str]]:
        """(place in score_mod.elements, element, which scores share it), of the wanted tensors."""
        found = () if self.score_mod is None else self.score_mod.elements
        return [
            (at, element, sharing(element.indices))
            for at, element in enumerate(found)
            if element.tensor % len(self.aux) in self.wanted
        ]

    @property
    def has_functions(self) -> bool:
        return self.score_mod is not None or self.mask_mod is not None

    @property
    def can_be_joint(self) -> bool:
        """Whether one kernel can make all gradients (joint.py)."""
        of_functions = self.has_functions or self.listed or bool(self.wanted)
        depths = {align_up(depth, GRANULE) for depth in (self.depth, self.depth_v)}
        return not of_functions and depths == {DEPTH} and mask_fact(self.mask) != "other"

    @property
    def joint_owner(self) -> JointOwner:
        return JointOwner(dtype=self.dtype)

    @property
    def owners_of_keys(self) -> tuple[Owner, ...]:
        """The kernels of dK and dV: one, or where they are wide one for each."""
        both = self.owner("keys")
        return tuple(replace(both, only=i) for i in both.results) if both.is_wide else (both,)

    def owner(self, name: str) -> Owner:
        """
        >>> BackwardConfig("bf16", 128, 128).owner("keys").smem.nbytes
        145620
        """
        depths = align_up(self.depth, GRANULE), align_up(self.depth_v, GRANULE)
        tables = sum(shared == DISTANCES for *_, shared in self.summed)
        plain = self.score_mod is None
        return Owner(name, self.dtype, depths, tables, plain=plain, pairs=bool(self.pairs))

    @property
    def numbers_of_tile(self) -> int:
        """Float32 of 128 queries of a head in memory: L, delta and, where the owner of keys wants them, their parts."""
        with_parts = self.owner("keys").subtracts and not self.wanted
        return STATS + subtracted_sizes.NUMBERS * with_parts

    @property
    def grad_dtype(self) -> str:
        return "f32" if self.accumulate else self.dtype

    @property
    def stored_columns(self) -> int:
        """Columns of a result that fill a row of a chunk."""
        return elements_in(self.grad_dtype, SWIZZLE_BYTES)

    @property
    def elements(self) -> int:
        """Elements of one access of 16 bytes."""
        return elements_in(self.dtype, 16)

    @property
    def name(self) -> str:
        """
        >>> from cute_fa4.masks import Causal
        >>> BackwardConfig("bf16", 64, 64, mask=Causal()).name.rpartition("_")[0]
        'backward_bf16_d64_dv64_dense_causal_sm_100a'
        """
        said = [
            (True, "backward"),
            (True, self.dtype),
            (True, f"d{self.depth}"),
            (True, f"dv{self.depth_v}"),
            (True, "packed" if self.packed else "dense"),
            (self.used, "used"),
            (self.mask != Full(), naming.mask_words(self.mask)),
            *naming.of_functions(self),
            (self.dlse, "dlse"),
            (self.accumulate, "accumulate"),
            (self.listed, "listed"),
            (self.pairs, "pairs"),
            (self.joint, "five_products"),
            (self.wanted, "of_aux_" + "_".join(map(str, self.wanted))),
            (True, self.arch),
        ]
        words = naming.in_one(naming.wanted(said))
        return f"{words}_{sha256(repr(self).encode()).hexdigest()[:8]}"
