"""Which kernel a call gets: an ordered list of rules; the first rule that holds names the family.

    >>> print(table())
    a call with                                  family
    a latent cache of 8 bits, q of 16 ******     mla_widen
    the same, more rows                          mla_widenpair
    a latent cache, up to 64 rows *****          mla_decode
    the same, more rows                          mla_pair
    skip_softmax_threshold_scale_factor          mha2q
    q and k with scales of blocks                mhamx
    k_rope of 8 bits under 16                    mharope
    q of 16 bits over k of 8, up to 32 rows *    mhawiden
    the same, 192/128, more than 128 rows *      mhawiden2q
    the same, wide heads or k_rope *             mhawidewiden
    the same, more rows, where q stays so *      mhawiden2q
    block_sparse_tensors, blocks of 256 queries  mha2q
    block_sparse_tensors                         mha1q
    up to 32 rows, no k_rope, no wide heads      mhaswap
    wide heads **, more than 128 rows            mhawidepair
    wide heads **                                mhawide
    the same bits in every batch ***             mha2q
    up to 128 rows                               mha1q
    CUTE_FA4_PAIR=on, 16 bits, full or causal    mhapair
    lengths for which pairs of CTAs pay ****     mhapair
    anything else                                mha2q

    *     with more rows, q is quantized to 8 bits before the call, as k is, unless it keeps 16 bits (q_quantize);
          then mhawiden has any number of rows where keys have scales. Wide here: of q and k beyond 128; such heads and
          k_rope keep 16 bits by q_quantize alone
    **    of 16 bits; of q and k beyond 192, of v beyond 128
    ***   tokens_per_split, where lengths differ: the longest sequence must not choose the kernel; and every call under
          CUTE_FA4_BATCH_INVARIANT=on, which with up to 128 rows has one query tile a CTA, and the bits of two
    ****  a rule of lengths, as known from metadata (choose/pays.py)
    ***** with scales of keys any number, in tiles of 64
    ****** rows of 656 bytes, and of 576 where q stays so (q_quantize), up to 32; with scales of keys any number

    which_kernel(Call(...), lengths)    the kernel of one call
    kernels_of(Call(...))               those that calls of any length may meet, by the same rules

Calls, `capabilities()`, catalogues and lists of a model's kernels ask here; this is the only place with a rule. Rows
are those of a tile: queries of the longest sequence, times the heads of a group that share it (rows_of_tiles.py).

    call     calls/asked.py        from tensors, options and policies
    problem  Call.of_choices       from what choose_config takes: configurations, catalogues, questions

Other choices are made elsewhere: the schedule chooses how a family runs the problem (choose_config.py), and each launch
chooses whether keys are split (calls/split_keys/split.py).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from ...dtypes import is_quantized, row_of
from ...scales import Scales
from ..blueprint import bands, tuning
from ..blueprint.reach import DEPTHS, QK_DEPTHS
from ..blueprint.rope_columns import may_be_beside_dequantized
from ..blueprint.schedule import Schedule
from ..blueprint.tiles import ROWS_PER_Q_TILE
from ..few_rows.dequantized.schedule import DequantizedTile
from ..few_rows.schedule import SwappedTile
from ..latent.dequantized.schedule import LatentRows
from ..latent.pair.schedule import LatentPair
from ..latent.pair_dequantized.schedule import LatentRowsPair
from ..latent.schedule import LatentTile
from ..one_tile.schedule import OneTile
from ..two_tiles.block_scaled.schedule import BlockScaled
from ..two_tiles.dequantized.schedule import SlotTwoTiles
from ..two_tiles.pair.schedule import Pair, pairs_run
from ..two_tiles.schedule import TwoTiles
from ..wide.dequantized.schedule import SlotWideTile
from ..wide.dequantized_rope.schedule import RopeTile
from ..wide.pair.schedule import WidePair
from ..wide.schedule import WideTile
from . import pays
from .rows_of_tiles import (
    LATENT_ROWS,
    ROWS_PER_CTA,
    SWAPPED_ROWS,
    dequantized_tile,
    dequantizes_rows,
    dequantizes_units,
    in_units,
    is_wide,
    latent_rows,
    tile_for,
)

# Numbers of queries that yield every answer: each number of few rows, and full tiles and CTAs.
QUERIES = (*range(1, SWAPPED_ROWS[-1] + 2), ROWS_PER_Q_TILE, ROWS_PER_CTA)


@dataclass(frozen=True)
class Call:
    """The inputs of a rule: metadata only, and of the lengths only seqlen_q.

    qkv_dtype   of q, and of k and v where kv_dtype is None
    kv_dtype    of k and v, where it is another
    head_dim    of q and k, with the columns that lie in q_rope and k_rope
    group       query heads a key/value head
    seqlen_q    queries of the longest sequence
    fixed       the bits of a sequence are promised to be the same in every batch (tokens_per_split), where lengths
                differ: the longest sequence must not choose the kernel
    pack_gqa    whether the heads of a group share a tile; None: as it suits
    rows        of a tile of few rows, if it is given and not chosen
    latent      v is the first columns of k. of_rows: cache rows of 656 bytes, with inline scales and RoPE columns
    descales    Scales, or their letters (cute_fa4/scales.py)
    rope        columns of k that lie in a separate tensor. rope_dtype: their dtype; None: that of k
    mask, plain, exact, arch    as choose/pays.py reads them
    q_block     queries of a block of block_sparse_tensors; 0: there are none
    skips       key tiles of small weights are skipped
    stays       16-bit q over 8-bit k is not quantized, however many rows there are (calls/queries.py)
    `swaps`, `dequantizes`, `pairs`  settings from the environment (compiler/policy.py)
    invariant   likewise: the bits of a row depend on that row alone (docs/invariance.md). Lengths choose only between
                kernels with the same bits, and CTAs do not share MMAs
    """

    qkv_dtype: str
    head_dim: int
    head_dim_v: int
    kv_dtype: str | None = None
    group: int = 1
    seqlen_q: int = 1
    fixed: bool = False
    pack_gqa: bool | None = None
    rows: int | None = None
    latent: bool = False
    of_rows: bool = False
    descales: Scales | str = Scales()
    rope: int = 0
    rope_dtype: str | None = None
    mask: bands.Mask = bands.Full()
    plain: bool = True
    exact: bool = False
    arch: str = "sm_100a"
    q_block: int = 0
    skips: bool = False
    stays: bool = False
    swaps: bool = True
    dequantizes: bool = True
    pairs: bool | None = None
    invariant: bool = False

    def __post_init__(self):
        object.__setattr__(self, "descales", Scales.of(self.descales))

    @classmethod
    def of_choices(cls, choices: dict, **more) -> "Call":
        """A Call from the arguments of choose_config, which have no lengths; more: further fields."""
        of = choices.get
        latent, head_dim, kv_dtype = bool(of("latent")), choices["head_dim"], of("kv_dtype")
        known = dict(
            qkv_dtype=choices["qkv_dtype"],
            head_dim=head_dim,
            head_dim_v=of("head_dim_v") or head_dim,
            kv_dtype=kv_dtype,
            group=of("group", 1),
            pack_gqa=of("pack_gqa"),
            rows=of("rows"),
            latent=latent,
            of_rows=latent and kv_dtype is not None and of("scale_dtype") is not None,
            descales=of("descales", Scales()),
            rope=of("rope_depth", 0),
            rope_dtype=of("rope_dtype"),
            mask=of("mask") or (bands.Causal() if of("causal") else bands.Full()),
            plain=of("score_mod") is None and of("mask_mod") is None,
            exact=of("maximum") == "exact",
            arch=of("arch", "sm_100a"),
            q_block=of("q_block", 0),
            skips=of("skip_softmax", False),
        )
        return cls(**known | more)

    @property
    def length_chooses(self) -> bool:
        """Whether the longest sequence may choose the kernel."""
        return not (self.fixed or self.invariant)

    @property
    def wide(self) -> bool:
        return is_wide(self.head_dim, self.head_dim_v, self.of_8_bits)

    @property
    def of_8_bits(self) -> bool:
        """Whether k and v have 8 bits."""
        return is_quantized(self.kv_dtype or self.qkv_dtype)

    @property
    def of_cache_blocks(self) -> bool:
        """Whether k and v have scales of blocks in tensors of their own (NVFP4, MXFP8): always dequantized."""
        return row_of(self.kv_dtype).cache_scales is not None

    @cached_property
    def tile(self) -> tuple[bool, int | None]:
        """-> (whether the heads of a group share a tile, rows of a tile of few rows; None: of 128, or of two CTAs)."""
        if self.latent:
            rows = self.rows or latent_rows(self.seqlen_q if self.length_chooses else 1, self.group)
            alone, dequantizes = self.invariant or self.has_unpaired_scales, self.dequantizes_latent
            if rows is None and alone:
                rows = LATENT_ROWS[-1]
            if alone and dequantizes:
                rows = min(rows, LatentRows.latent_rows)
            fits = not dequantizes or self.rows or (rows or 0) <= LatentRows.latent_rows
            return True, rows if fits else None
        if self.rows is not None:
            return bool(self.pack_gqa), self.rows
        if self.q_block:
            return False, None  # each head has its lists
        if self.keeps_q:
            rows = dequantizes_rows(self.head_dim, self.rope)
            swaps = self.swaps and self.length_chooses and rows
            found = tile_for(self.seqlen_q, self.group, self.pack_gqa, swaps)
            if rows and found[1] is None and self.has_unpaired_scales:
                return dequantized_tile(self.group, self.pack_gqa)
            return found
        return tile_for(self.seqlen_q, self.group, self.pack_gqa, self.may_swap)

    @property
    def dequantizes_latent(self) -> bool:
        """Whether a latent cache has 8 bits, in rows of 656 bytes or of 576, under a q of 16."""
        return self.latent and (self.of_rows or self.kv_dtype is not None)

    @property
    def keeps_q(self) -> bool:
        """Whether 16-bit q over 8-bit k is not quantized; over k whose blocks have scales it never is."""
        if self.kv_dtype is None or not (self.stays or self.of_cache_blocks):
            return False
        if dequantizes_rows(self.head_dim, self.rope):
            return True
        runs = may_be_beside_dequantized(self.rope_dtype, self.qkv_dtype)
        by_key = bool(self.descales.of_keys)
        return dequantizes_units(self.head_dim, self.rope, runs, by_key)

    @property
    def has_rest_of_slot(self) -> bool:
        """Whether k has more columns than a slot, and two query tiles still fit beside it; lengths may choose it.

        Its bits are not those of a tile of 128 rows, which serves few rows better.
        """
        fits = not self.rope and self.head_dim <= QK_DEPTHS[-1] and self.head_dim_v <= DEPTHS[-1]
        return fits and self.length_chooses and in_units(self.head_dim, 0, self.kv_dtype)

    @property
    def may_swap(self) -> bool:
        """Whether tiles of few rows may be chosen."""
        if (
            not self.length_chooses
            or self.rope
            or self.of_blocks
            or self.wide
            or self.q_block
            or self.skips
        ):
            return False
        if self.kv_dtype is not None:
            return self.dequantizes and dequantizes_rows(self.head_dim, self.rope)
        return self.swaps

    @property
    def few(self) -> bool:
        return self.tile[1] is not None

    @property
    def of_blocks(self) -> bool:
        """Whether the scales are block scales."""
        return self.descales.of_blocks

    @property
    def has_unpaired_scales(self) -> bool:
        """Whether scales are of keys or of blocks: pairs have no kernel with them."""
        return bool(self.descales.of_keys) or self.of_blocks

    @property
    def heads(self) -> int:
        """Query heads that share a tile."""
        return self.group if self.tile[0] else 1

    @property
    def fills_tile(self) -> bool:
        """Whether there are more rows than a tile of 128 has."""
        return self.seqlen_q * self.heads > ROWS_PER_Q_TILE

    @property
    def pays_for_wide(self) -> bool:
        """Whether pairs of CTAs run wide heads: where there are rows for both (docs/decisions/0015).

        Neither CTA has more rows than alone, and each loads half.
        """
        if self.pairs is not None or not (self.length_chooses and self.fills_tile):
            return bool(self.pairs) and self.length_chooses and self.fills_tile
        facts = {"head_dim": self.head_dim, "head_dim_v": self.head_dim_v}
        return tuning.choose("wide_pairs", arch=self.arch, **facts)

    @property
    def has_pairs(self) -> bool:
        """Whether pairs of CTAs run it and may be asked for."""
        return self.pairs is not False and pairs_run(self.qkv_dtype, self.mask)

    @property
    def asks_of_pairs(self) -> pays.Asked:
        """The inputs of the rule of pairs, except lengths."""
        depths = self.head_dim, self.head_dim_v
        return pays.Asked(
            self.qkv_dtype, *depths, self.mask, plain=self.plain, exact=self.exact, arch=self.arch
        )


class Kernel(NamedTuple):
    """The kernel of a call.

    family    a folder of sm100
    pack_gqa  the heads of a group share a tile
    rows      of a tile of few rows; None: the family has one size
    one_query_tile  a CTA of mha2q has one query tile (two_tiles/one_query_tile.py)
    """

    family: str
    pack_gqa: bool
    rows: int | None = None
    one_query_tile: bool = False

    @property
    def choices(self) -> dict:
        """The arguments of choose_config."""
        defaults = self._field_defaults
        return {k: v for k, v in self._asdict().items() if k not in defaults or v != defaults[k]}

    @classmethod
    def of(cls, rule: "Rule", call: Call) -> "Kernel":
        one = rule.schedule is TwoTiles and call.invariant and not (call.fills_tile or call.q_block)
        return cls(rule.schedule.family, *call.tile, one_query_tile=one)


class Rule(NamedTuple):
    """asks: text for the table; schedule: of the family, which runs the calls for which `holds` is true.

    of_lengths: the rule also requires that choose/pays.py agrees for the lengths
    """

    asks: str
    schedule: type[Schedule]
    holds: Callable[[Call], bool]
    of_lengths: bool = False


RULES = (
    Rule("a latent cache of 8 bits, q of 16 ******", LatentRows, lambda c: c.dequantizes_latent and c.few),
    Rule("the same, more rows", LatentRowsPair, lambda c: c.dequantizes_latent),
    Rule("a latent cache, up to 64 rows *****", LatentTile, lambda c: c.latent and c.few),
    Rule("the same, more rows", LatentPair, lambda c: c.latent),
    Rule("skip_softmax_threshold_scale_factor", TwoTiles, lambda c: c.skips),
    Rule("q and k with scales of blocks", BlockScaled, lambda c: c.of_blocks),
    Rule("k_rope of 8 bits under 16", RopeTile, lambda c: c.rope_dtype and not c.of_8_bits),
    Rule("q of 16 bits over k of 8, up to 32 rows *", DequantizedTile, lambda c: c.kv_dtype and c.few),
    Rule("the same, 192/128, more than 128 rows *", SlotTwoTiles, lambda c: c.has_rest_of_slot and c.fills_tile),
    Rule("the same, wide heads or k_rope *", SlotWideTile, lambda c: in_units(c.head_dim, c.rope, c.kv_dtype)),
    Rule("the same, more rows, where q stays so *", SlotTwoTiles, lambda c: c.kv_dtype),
    Rule("block_sparse_tensors, blocks of 256 queries", TwoTiles, lambda c: c.q_block and not c.q_block % ROWS_PER_CTA),
    Rule("block_sparse_tensors", OneTile, lambda c: c.q_block),
    Rule("up to 32 rows, no k_rope, no wide heads", SwappedTile, lambda c: c.few),
    Rule("wide heads **, more than 128 rows", WidePair, lambda c: c.wide and c.pays_for_wide),
    Rule("wide heads **", WideTile, lambda c: c.wide),
    Rule("the same bits in every batch ***", TwoTiles, lambda c: not c.length_chooses),
    Rule("up to 128 rows", OneTile, lambda c: not c.fills_tile),
    Rule("CUTE_FA4_PAIR=on, 16 bits, full or causal", Pair, lambda c: c.has_pairs and c.pairs),
    Rule("lengths for which pairs of CTAs pay ****", Pair, lambda c: c.has_pairs and c.asks_of_pairs.may_pay, True),
    Rule("anything else", TwoTiles, lambda c: True),
)  # fmt: skip


class Choice(NamedTuple):
    """The result of the rules for a call: one kernel, or two between which lengths decide.

    paired  the kernel where pairs of CTAs pay for the lengths; None: always `kernel`
    asks    the inputs of the rule of pairs, except lengths. heads: query heads that share a tile
    """

    kernel: Kernel
    paired: Kernel | None
    asks: pays.Asked | None
    heads: int

    def of(self, lengths: pays.Lengths | None) -> Kernel:
        """lengths: of queries and keys, with each head counted alone; None: nothing is known, and CTAs run alone."""
        if self.paired is None or lengths is None:
            return self.kernel
        if self.heads > 1:
            sequences = lengths.sequences // self.heads
            lengths = replace(lengths, sequences=sequences, shared=self.heads)
        return self.paired if pays.pays(self.asks, lengths) else self.kernel


def which_kernel(call: Call, lengths: pays.Lengths | None = None) -> Kernel:
    """The kernel of a call. FA4Config.refusals of its configuration says whether it runs the problem.

    >>> which_kernel(Call("bf16", 128, 128, group=8))[:3], which_kernel(Call("bf16", 128, 128, seqlen_q=100))[:3]
    (('mhaswap', True, 8), ('mha1q', False, None))
    >>> [which_kernel(Call("bf16", 256, 256, group=8, seqlen_q=n)).family for n in (1, 17)]
    ['mhawide', 'mhawidepair']
    """
    return choice(call).of(lengths)


@tuning.cached(maxsize=4096)
def choice_of(**call) -> Choice:
    """The same for a Call of these fields, without its lengths. It is cached, as configurations are."""
    return choice(Call(**call))


def choice(call: Call) -> Choice:
    """The result of RULES for a call."""
    if call.kv_dtype is not None and not (call.latent or call.few or call.keeps_q):
        call = replace(call, qkv_dtype=call.kv_dtype, kv_dtype=None)  # q is quantized before
    holding = [rule for rule in RULES if rule.holds(call)]
    kernel = next(rule for rule in holding if not rule.of_lengths)
    chosen = [Kernel.of(rule, call) for rule in (kernel, holding[0])]
    if not holding[0].of_lengths:
        return Choice(chosen[0], None, None, call.heads)
    return Choice(*chosen, call.asks_of_pairs, call.heads)


def kernels_of(call: Call, queries=QUERIES, lengths_differ: bool = False) -> tuple[Kernel, ...]:
    """All kernels of calls that differ from this one in their lengths only, those of long queries first.

    queries: possible lengths of the longest sequence. lengths_differ: some calls may be `fixed`

    >>> [kernel[::2] for kernel in kernels_of(Call("bf16", 128, 128))]
    [('mha2q', None), ('mha1q', None), ('mhaswap', 32), ('mhaswap', 8)]
    """
    return _kernels_of(replace(call, seqlen_q=1), tuple(queries), lengths_differ)


@tuning.cached(maxsize=1024)
def _kernels_of(call: Call, queries: tuple, lengths_differ: bool) -> tuple[Kernel, ...]:
    asked = ((n, fixed) for fixed in (False, True)[: 1 + lengths_differ] for n in reversed(queries))
    choices = [choice(replace(call, seqlen_q=n, fixed=fixed)) for n, fixed in asked]
    found = (kernel for choice in choices for kernel in (choice.kernel, choice.paired))
    return tuple(dict.fromkeys(filter(None, found)))


def table() -> str:
    """RULES as text."""
    width = max(len(rule.asks) for rule in RULES) + 2
    lines = [("a call with", "family"), *((rule.asks, rule.schedule.family) for rule in RULES)]
    return "\n".join(f"{asks:{width}}{family}" for asks, family in lines)
