"""Which calls pairs of CTAs serve better than CTAs alone: a rule of metadata, from modelled launches.

    cycles of a launch = blocks x (start + cycles of a key tile x key tiles of a block)

    alone    blocks of 256 rows, each on an SM       a key tile takes longer: shared memory is full
    pairs    blocks of 512 rows, each on two SMs     under a causal mask a block walks a key tile more, and twice
                                                     as many of its tiles are masked, which take longer

                       seen, in key tiles     0    ..    10    17                          keys of the mean row / 128
    full               |pairs ------------------------------------------------------->
    causal, 192/128    |alone ------------------|pairs ------------------------------>
    causal, 128        |alone ------------------------|pairs ------------------------>
    the same, B300     |alone -----------------|pairs ------------------------------->

The picture is of a least gain of 2 %. The package's table asks for more, the error of the model on pairs, which is
larger than what pairs save anywhere: all calls run on CTAs alone until a chip has been measured (docs/decisions/0051).

For packed sequences, metadata gives the mean and the longest length, not the distribution. Most rows lie in long
sequences: with lengths of 46 to 8192 (mean 1638), a row shares its sequence with 4,681 others on average. The midpoint
between the mean and the longest length approximates that.

`Lengths` is what a call knows without reading any of its tensors. Cycles are rows of the tuning table
(sm100/blueprint/tuning.toml). Pairs are taken where a key tile and the launch save its least gain and they fill the
chip; what it has no row for runs on CTAs alone (docs/decisions/0020).
"""

from dataclasses import dataclass
from typing import NamedTuple

from ..blueprint import bands, tuning

CTAS = 2
PAIRS_OF_SMS = 74  # of a B200
ROWS_ALONE = 256  # of a block
ROWS_OF_PAIR = CTAS * ROWS_ALONE
KEYS_A_TILE = 128
STEP = 16  # of depth, for the tensor core
LAGS_TO = 128  # columns of K: up to there P waits for the exact maximum, which pairs cannot hide
OF_LENGTHS = ("queries", "keys")  # facts of the tuning table's rows for pairs


class Cycles(NamedTuple):
    """Cycles that a block adds to a CTA that is at work: at its start, and for each key tile.

    The start is negative where query tile 0 skips more than a start takes (docs/decisions/0023).
    """

    start: int
    tile: int

    def of(self, tiles: float) -> float:
        return self.start + self.tile * tiles


def modelled(arch: str) -> dict[tuple, tuple[Cycles, Cycles]]:
    """Head dims of Q, K and of V, O, and the mask -> alone, in pairs: the rows of the package for an architecture.

    `python -m benchmarks.cycle_model.pairs --rule` models them again.
    """
    rows = (row for row in tuning.shipped().rows["pairs"] if row.facts.get("arch") == arch)
    return {
        (row.facts["head_dim"], row.facts["head_dim_v"], bands.KINDS[row.facts["mask"]]): (
            Cycles(*row.value["alone"]),
            Cycles(*row.value["pairs"]),
        )
        for row in rows
    }


@dataclass(frozen=True)
class Asked:
    """The properties of a call that the rule reads.

    plain      neither a score_mod nor a mask_mod: with them softmax is the bound
    exact      the running maximum is asked for, as fp16 needs it
    arch       of the kernel: cycles differ with it
    """

    qkv_dtype: str
    head_dim: int
    head_dim_v: int
    mask: bands.Mask
    plain: bool = True
    exact: bool = False
    arch: str = "sm_100a"

    @property
    def facts(self) -> dict | None:
        """The facts for the tuning table; None: CTAs alone run it, whatever the table says."""
        if self.qkv_dtype not in ("bf16", "fp16") or not self.plain:
            return None
        lags = self.qkv_dtype == "bf16" and not self.exact
        if not lags and self.head_dim <= LAGS_TO:
            return None
        qk, ov = (-(-depth // STEP) * STEP for depth in (self.head_dim, self.head_dim_v))
        mask = bands.mask_fact(self.mask)
        return {"arch": self.arch, "head_dim": qk, "head_dim_v": ov, "mask": mask}

    @property
    def may_pay(self) -> bool:
        """Whether pairs run it for some lengths."""
        facts = self.facts
        table = tuning.active()
        return facts is not None and any(
            default_of(value, self.arch) == "pairs"
            for value in table.may_choose("pairs", facts, OF_LENGTHS)
        )


@dataclass(frozen=True)
class Lengths:
    """The amount of work of a call.

    queries, keys   of a sequence, on average where only that is known
    sequences       times the heads that are scheduled
    shared          heads of a group that share a tile
    equal           all sequences have as many queries; otherwise the last block of each is half full on average
    most_queries    of the longest sequence, where they differ; 0: as many as the mean
    most_keys
    """

    queries: float
    keys: float
    sequences: int
    shared: int = 1
    equal: bool = True
    most_queries: float = 0
    most_keys: float = 0

    @property
    def of_a_row(self) -> tuple[float, float]:
        """Queries and keys of the sequence of a row, on average over rows."""
        known = (self.queries, self.most_queries), (self.keys, self.most_keys)
        longest = tuning.choose("pairs_longest_of_mean")
        return tuple((mean + min(max(mean, most), longest * mean)) / 2 for mean, most in known)

    def blocks(self, rows: int) -> float:
        """Blocks of so many rows, of all sequences."""
        each = self.queries * self.shared / rows
        return self.sequences * (-(-each // 1) if self.equal else each + 0.5)

    def cycles(self, cost: Cycles, rows: int, mask: bands.Mask) -> float:
        """Cycles of all blocks of so many rows; the half block that a sequence lacks is one of a mean sequence."""
        of_rows = cost.of(self._key_tiles(rows, mask, *self.of_a_row))
        if self.equal:
            return self.blocks(rows) * of_rows
        lacking = cost.of(self._key_tiles(rows, mask, self.queries, self.keys)) / 2
        return self.sequences * (self.queries * self.shared / rows * of_rows + lacking)

    def _key_tiles(self, rows: int, mask: bands.Mask, queries: float, keys: float) -> float:
        """Key tiles that a block of so many rows of such a sequence walks, on average."""
        seen = keys
        if isinstance(mask, bands.Causal):
            seen = min(seen, seen - min(queries, keys) / 2 + rows / self.shared / 2)
        return max(1.0, seen / KEYS_A_TILE)


def default_of(value, arch: str) -> str:
    """The CTAs that a value of the table's rows chooses: "pairs" for some lengths, or "alone" for all.

    Cycles choose pairs where a key tile on them saves the least gain. A saving at the start of a block is not
    enough: it is of one block, and the model knows it least.

    >>> default_of({"alone": [0, 2000], "pairs": [0, 1000]}, "sm_100a"), default_of("pairs", "sm_100a")
    ('pairs', 'pairs')
    """
    if isinstance(value, str):
        return value
    (_, alone), (_, pairs) = value["alone"], value["pairs"]
    least = tuning.choose("pairs_least_gain", arch=arch)
    return "pairs" if pairs < (1 - least) * alone else "alone"


def pays(asked: Asked, lengths: Lengths) -> bool:
    """Whether a call runs on pairs, unless it says otherwise.

    >>> pays(Asked("bf16", 128, 128, bands.Full()), Lengths(32768, 32768, 64))
    False

    With a least gain of 2 %:

    >>> two_percent = tuning.using(tuning.shipped().changed(pairs_least_gain=0.02))
    >>> _ = two_percent.__enter__()
    >>> full, causal = (Asked("bf16", 128, 128, mask) for mask in (bands.Full(), bands.Causal()))
    >>> [pays(full, Lengths(n, n, 16 * (65536 // n))) for n in (256, 512, 2048, 32768)]
    [False, True, True, True]
    >>> [pays(causal, Lengths(n, n, 16 * (65536 // n))) for n in (2048, 8192, 16384, 32768)]
    [False, True, True, True]
    >>> b300 = Asked("bf16", 128, 128, bands.Causal(), arch="sm_103a")
    >>> [pays(asked, Lengths(4096, 4096, 128)) for asked in (causal, b300)]
    [False, True]
    >>> pays(causal, Lengths(2048, 32768, 64)), pays(full, Lengths(768, 32768, 64)), pays(full, Lengths(2048, 2048, 8))
    (True, False, False)

    Packed sequences of 1,638 queries on average, by the longest:

    >>> [pays(full, Lengths(1638, 1638, 320, equal=False, most_queries=n, most_keys=n)) for n in (1638, 4096, 8192)]
    [False, True, True]
    >>> _ = two_percent.__exit__(None, None, None)
    """
    facts = asked.facts
    if facts is None or lengths.blocks(ROWS_OF_PAIR) < PAIRS_OF_SMS:  # keys are split instead
        return False
    queries, keys = lengths.of_a_row
    value = tuning.choose("pairs", queries=queries, keys=keys, **facts)
    default = default_of(value, asked.arch)
    if value == default or default == "alone":
        return default == "pairs"
    alone = lengths.cycles(Cycles(*value["alone"]), ROWS_ALONE, asked.mask)
    pairs = CTAS * lengths.cycles(Cycles(*value["pairs"]), ROWS_OF_PAIR, asked.mask)
    return pairs < (1 - tuning.choose("pairs_least_gain", arch=asked.arch)) * alone
