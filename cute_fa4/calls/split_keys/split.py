"""How the keys of a call are split; plans.py launches the two kernels of a call whose keys are.

    num_splits          None or 0   chosen here, from metadata alone: the same for every replay of a captured graph.
                                    Decode with lengths on the device: few blocks of few keys are split within clusters,
                                    in one launch; else the key tiles of the batch are distributed among the SMs.
                                    Otherwise even parts, where there are fewer blocks than SMs
                        1           never split
                        N           exactly N parts of each sequence, as even as its key tiles allow
    tokens_per_split    N           parts of N keys, counted from the first key of a sequence: what else is in the
                                    batch, and how long the others are, changes no bit of its result. The CTA of a block
                        takes and merges all of them where blocks fill the chip (fill_chip), with the same bits

With batch_invariant=True, or under CUTE_FA4_BATCH_INVARIANT=on, the parts have tokens_per_split or else
invariant_tokens keys, whatever num_splits is.

Which keys a part takes follows from the lengths on the device (sm100/work/split.py, stream_k.py): no plan, no
metadata tensor, no synchronisation. Splitting pays where a launch has fewer blocks than the chip has SMs and each still
has keys enough, and where sequences differ so much that the longest ones would be waited for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from math import isqrt, prod
from operator import index

import torch

from cute_fa4 import masks
from cute_fa4.calls.grid import ctas_of
from cute_fa4.calls.request import Options, Where
from cute_fa4.calls.split_keys import workspace
from cute_fa4.compiler import policy
from cute_fa4.sm100.blueprint import choices, tuning
from cute_fa4.sm100.choose.choose_config import CLUSTER_PARTS, KEYS_PER_TILE
from cute_fa4.sm100.choose.launches import (
    OWN_PARTS,
    PARTS,
    SHARED,
    Cut,
    in_cluster,
    may_cluster,
    may_own_parts,
    may_share,
    own_parts_shapes,
)
from cute_fa4.system.clusters import most_clusters

MAX_SPLITS, MAX_PARTS = 1024, 4096  # of num_splits, and of tokens_per_split
MOST_LISTED = (
    2048  # latent rows of a list whose block is not split where whole blocks fill the chip
)
# Keys of a part, of batch-invariant calls without tokens_per_split: where CTAs that fill the chip merge the parts of
# their rows, and where parts of long calls go through memory. A fact of the problem, not of lengths or storage.
INVARIANT_TOKENS, INVARIANT_TOKENS_IN_MEMORY = 512, 2048
MAX_PARTIAL_ROWS = (1 << 31) - 1
MAX_SHARED_TILES = 1 << 30  # key tiles of all blocks, which the kernel counts in 32 bits
EMULATED_SMS = 148  # of a B200


@dataclass(frozen=True)
class Split:
    """The same number of parts for each sequence.

    tiles_each  key tiles of a part; 0: even parts
    run         parts that a CTA takes, one after the other (sm100/work/runs.py); 0: the kernel has no runs
    """

    parts: int
    tiles_each: int = 0
    run: int = 0

    cut = PARTS

    @property
    def told(self) -> tuple:
        """The kernel's argument `split`."""
        return (self.parts, self.tiles_each, *([self.run] if self.run else []))

    def workspace(self, q, v) -> tuple:
        """-> (partial O, its log-sum-exp, None, what the kernel is told)."""
        return *workspace.partial_results(q, v, self.parts), None, self.told

    def in_runs(self, q, where: Where, attention) -> Split:
        """The same parts for the attention kernel of a call, which may take several in a CTA."""
        if not attention.in_runs:
            return self
        blocks = _ctas(q, where, attention)
        return replace(self, run=parts_of_run(self, blocks, num_sms(q.device)))


@dataclass(frozen=True)
class OwnParts:
    """Parts of tiles_each key tiles, which the CTA of a block takes and merges in turn (sm100/work/own_parts.py).

    ctas    of the launch, at most
    shapes  of the workspace of a CTA
    """

    tiles_each: int
    ctas: int
    shapes: tuple[tuple, tuple]

    cut = OWN_PARTS

    def told(self, q) -> tuple:
        """The kernel's argument `split`, with memory for sums that its CTAs keep from part to part."""
        return self.tiles_each, *workspace.of_ctas(q, self.ctas, self.shapes)


@dataclass(frozen=True)
class Clustered:
    """Equally many even parts for each sequence, in the CTAs of a cluster: one launch (sm100/few_rows/cluster.py)."""

    parts: int

    @property
    def cut(self) -> Cut:
        return in_cluster(self.parts)


@dataclass(frozen=True)
class Shared:
    """Key tiles distributed among CTAs (stream-K split).

    ctas       CTAs launched, or pairs of CTAs: no more than fit on the SMs
    least      minimum key tiles per CTA, if there are enough
    blocks     query blocks: sequences times scheduled heads times query tiles
    positions  query positions of a block
    heads      heads of a block
    """

    ctas: int
    least: int
    blocks: int
    positions: int
    heads: int

    cut = SHARED

    @property
    def slots(self) -> int:
        """Enough for the piece of every CTA in every block, whatever the lengths are."""
        return self.ctas + self.blocks

    def workspace(self, q, v) -> tuple:
        """-> (partial O, its log-sum-exp, slots of each block, what the kernel is told)."""
        partial_o, lse, parts = workspace.slots(
            q, v, self.slots, self.positions, self.heads, self.blocks
        )
        return partial_o, lse, parts, (self.ctas, self.least, parts)


def check_split(num_splits, tokens_per_split) -> None:
    """Refuse an invalid number of parts or length of a part."""
    for name, value in (("num_splits", num_splits), ("tokens_per_split", tokens_per_split)):
        if value is not None and (isinstance(value, bool) or not hasattr(value, "__index__")):
            raise TypeError(f"{name}: a {type(value).__name__}; accepted: an int or None")
    if num_splits is not None and not 0 <= index(num_splits) <= MAX_SPLITS:
        raise ValueError(
            f"num_splits: {num_splits}; accepted: None or 0 (chosen), 1 (never split), or a number of parts up to "
            f"{MAX_SPLITS}"
        )
    if tokens_per_split is None:
        return
    if index(tokens_per_split) <= 0 or index(tokens_per_split) % KEYS_PER_TILE:
        raise ValueError(
            f"tokens_per_split: {tokens_per_split}; accepted: a positive multiple of {KEYS_PER_TILE}, the keys of a "
            "tile; round it up"
        )
    if num_splits not in (None, 0, 1):
        raise ValueError(
            f"num_splits: {num_splits} with tokens_per_split={tokens_per_split}, which decides the number of parts; "
            "accepted: one of them"
        )


def split_of(
    q, k, where: Where, options: Options, config, partial: bool = False
) -> Split | OwnParts | Shared | Clustered | None:
    """The split of a checked call; None: its keys are not split.

    config: for the call without a split; partial: the float32 result will be merged with others
    """
    split = _wanted(q, k, where, options, config, partial)
    if split is None or isinstance(split, (Shared, Clustered)):
        return split
    own = _own_parts(q, where, config, split, partial)
    if own is not None:
        return own
    # Partial rows, and rows that the merge kernel is launched for: for packed queries the upper bound.
    partial, launched = q.shape[:-1].numel() * split.parts, q.shape[-2] * where.rows(q)
    if max(partial, launched) > MAX_PARTIAL_ROWS:
        raise ValueError(
            f"num_splits: {split.parts} parts of {q.shape[:-1].numel()} rows and heads are {partial} partial rows, "
            f"merged by a launch for {launched}; accepted: at most {MAX_PARTIAL_ROWS} each, because rows are 32-bit "
            "numbers; use fewer parts, or pass the longest sequence as max_seqlen_q"
        )
    return split


def _wanted(
    q, k, where: Where, options: Options, config, partial: bool
) -> Split | Shared | Clustered | None:
    num_splits, tokens_per_split = options.num_splits, options.tokens_per_split
    if options.blocks is not None or options.return_max:
        return None
    keys = most_keys(k, where)
    if policy.batch_invariant(options.batch_invariant):
        tokens_per_split = tokens_per_split or invariant_tokens(config)
        if keys <= tokens_per_split:
            return None  # a part alone is not merged, and has the same bits
    if tokens_per_split is not None:
        parts = -(-keys // index(tokens_per_split))
        if parts > MAX_PARTS:
            raise ValueError(
                f"tokens_per_split: {tokens_per_split} makes {parts} parts of up to {keys} keys; accepted: at most "
                f"{MAX_PARTS} parts; use a larger one, or pass max_seqlen_k"
            )
        return Split(max(parts, 1), index(tokens_per_split) // KEYS_PER_TILE)
    if num_splits == 1:
        return None
    if num_splits:
        return Split(index(num_splits))
    visible = _most_visible(options, where.seqlen_q(q))
    seen = min(keys, visible)
    per_head = -(-where.seqlen_q(q) // config.tiles.positions_per_cta)
    blocks = where.batch(q) * per_head * (q.shape[-2] // config.heads_per_tile)
    sms = num_sms(q.device)
    if may_cluster(config, partial):
        ctas = cluster_parts(blocks, seen, sms, q.device)
        if ctas is not None:
            return Clustered(ctas) if ctas > 1 else None
    most = tuning.choose("decode_blocks")
    if may_share(config) and (per_head == 1 or (per_head <= most and blocks < sms)):
        # As the kernel counts: a max_seqlen_k that is too small cuts nothing there.
        counted = min(most_keys(k, replace(where, max_seqlen_k=0)), visible)
        return _shared(q, where, config, blocks, seen, counted)
    parts = tuning.choose("parts", blocks=blocks, keys=seen, sms=sms)
    if parts == choices.RULE:
        parts = even_parts(sms // max(blocks, 1), seen, config.latent)
    return Split(parts) if parts > 1 else None


def invariant_tokens(config) -> int:
    return INVARIANT_TOKENS if config.merges_parts else INVARIANT_TOKENS_IN_MEMORY


def _own_parts(q, where: Where, config, split: Split, partial: bool) -> OwnParts | None:
    """The same parts, all of a block in one CTA: the same bits, so the rule may read lengths."""
    if not split.tiles_each or split.parts == 1 or not may_own_parts(config, partial):
        return None
    ctas = _ctas(q, where, config)
    own, rows = OwnParts(split.tiles_each, ctas, own_parts_shapes(config)), q.shape[:-1].numel()
    fills = fill_chip(own, num_sms(q.device), rows * split.parts * (config.ov_depth + 1))
    return own if fills else None


def _ctas(q, where: Where, config) -> int:
    """CTAs of a launch without split keys."""
    return ctas_of(config, q.shape[0], where.seqlen_q(q), q.shape[-2], where.batch(q))


def parts_of_run(split: Split, blocks: int, sms: int) -> int:
    """Parts that a CTA takes one after the other: the bits are the same, so lengths and the chip may decide.

    A run has at most run_tiles key tiles, because a launch waits for its last run. Claiming and beginning one costs
    as much as run_start_tiles of them.

    >>> [parts_of_run(Split(16, 4), blocks, 148) for blocks in (8, 16, 24, 40, 64, 256)]
    [1, 2, 3, 1, 4, 4]
    >>> parts_of_run(Split(16), 8, 148), parts_of_run(Split(4, 16), 64, 148)
    (1, 1)
    """
    longest, start = tuning.choose("run_tiles"), tuning.choose("run_start_tiles")
    most = min(split.parts, longest // split.tiles_each) if split.tiles_each else 1

    def cost(run: int) -> int:
        waves = -(-blocks * -(-split.parts // run) // sms)
        return waves * (run * split.tiles_each + start)

    return min(range(max(most, 1), 0, -1), key=cost)


def fill_chip(own: OwnParts, sms: int, of_parts: int) -> bool:
    """Whether CTAs fill the chip with all of a block's parts in one of them, in no more memory than parts of all rows.

    Where queries are few, most rows of a tile are empty: parts of them take less memory, and read keys in parallel.
    of_parts: float32 of those parts
    """
    return own.ctas >= sms and own.ctas * sum(map(prod, own.shapes)) <= of_parts


def least_keys(latent: bool, blocks: int, at_once: int) -> int:
    """Keys from which a second launch pays. at_once: blocks that the chip runs.

    A key tile of a latent cache takes longer than a merge, which then pays wherever whole blocks leave half of the chip
    idle (docs/decisions/0080).

    >>> least_keys(False, 1, 148), least_keys(True, 74, 148), least_keys(True, 75, 148)
    (512, 129, 512)
    """
    return tuning.choose("split_least_keys", latent=latent and 2 * blocks <= at_once)


def even_parts(most: int, seen: int, latent: bool = False) -> int:
    """Parts of a sequence of `seen` keys, of which `most` fit the chip.

    With n tiles in p parts, n / p tiles and the merge of p parts take least time at p = sqrt(n * merged_a_tile).

    >>> [even_parts(148, keys) for keys in (511, 512, 1024, 4096, 32768, 1 << 20)]
    [1, 4, 8, 17, 50, 148]
    >>> [even_parts(148, keys, latent=True) for keys in (128, 129, 260, 640)]
    [1, 1, 2, 5]
    """
    if seen < least_keys(latent, 1, most):
        return 1
    tiles = seen // KEYS_PER_TILE
    return min(most, tiles, isqrt(tiles * tuning.choose("merged_a_tile")))


_EMULATED = torch.device("cpu")


def cluster_parts(blocks: int, seen: int, sms: int, device: torch.device = _EMULATED) -> int | None:
    """CTAs that share the keys of a block, for a launch that merges nothing in memory; None: each would have
    too many keys. There are no more clusters than the device runs at the same time.

    >>> [cluster_parts(8, keys, 148) for keys in (128, 256, 512, 1024, 8192, 8193)]
    [1, 2, 4, 8, 8, None]
    >>> [cluster_parts(1, keys, 148) for keys in (4096, 4097)]
    [8, None]
    >>> [cluster_parts(16, keys, 148) for keys in (2048, 16384, 16385)]
    [8, 8, None]
    >>> [cluster_parts(blocks, 2048, 148) for blocks in (16, 32, 64, 65, 99, 148, 149)]
    [8, 4, 2, None, 1, 1, None]
    """
    if blocks > sms:
        return None
    chosen = tuning.choose("cluster_parts", blocks=blocks, keys=seen, sms=sms)
    if chosen != choices.RULE:
        runs = chosen <= 1 or blocks <= most_clusters(device, chosen, sms)
        return chosen if chosen and runs else None
    tiles = -(-seen // KEYS_PER_TILE)
    larger = [parts for parts in CLUSTER_PARTS if parts > 1]
    fitting = [1] + [parts for parts in larger if blocks <= most_clusters(device, parts, sms)]
    parts = next((parts for parts in fitting if parts >= tiles), fitting[-1])
    # Few SMs that read leave memory bandwidth for more; if all do, the launch waits for the longest sequence.
    steps = tuning.choose("cluster_tiles")
    most = next(most for share, most in steps if blocks * parts <= share * sms)
    if parts == 1:  # it merges nothing
        most = max(most, tuning.choose("alone_tiles"))
    return parts if tiles <= parts * most else None


def shared_parts(tiles: int, latent: bool = False) -> int:
    """The most parts of a block of so many key tiles that are worth the cost of their merge, as in even_parts.

    >>> [shared_parts(tiles) for tiles in (4, 17, 65, 129)], shared_parts(4, latent=True)
    ([16, 16, 25, 35], 1024)
    """
    parts = tuning.choose("shared_parts", latent=latent)
    if parts != choices.RULE:
        return parts
    return max(tuning.choose("merged_alike"), isqrt(tiles * tuning.choose("merged_a_tile")))


def whole_blocks_fit(blocks: int, at_once: int) -> bool:
    """Whether whole blocks, so many at once, leave the chip idle for no more than an eighth of the time that they take.

    A list of latent rows for each query, as in sparse prefill, has as many blocks of about one length as queries. Their
    pieces would cost that and more, and memory for a partial result of every query (docs/decisions/0079). Sequences of
    a cache in pages of one row may have any lengths, which a stream-K split evens out; their tables are longer.

    >>> [whole_blocks_fit(blocks, 74) for blocks in (74, 75, 512, 1024, 4096)]
    [True, False, True, True, True]
    """
    return 8 * (-blocks % at_once) <= blocks


def _shared(q, where: Where, config, blocks: int, seen: int, counted: int) -> Shared | None:
    """The split of decode whose lengths only the device knows; None: no sequence can have keys for two parts.

    seen, counted: keys that the queries of a sequence see: as the caller states, and the upper bound.
    """
    least, tiles = tuning.choose("shared_least_tiles"), -(-seen // KEYS_PER_TILE) + 1
    most = num_sms(q.device) // getattr(config.schedule, "ctas", 1)
    if (
        seen < least_keys(config.latent, blocks, most)
        or blocks * (counted // KEYS_PER_TILE + 2) > MAX_SHARED_TILES
    ):
        return None
    listed = config.latent and config.page_size == 1 and seen <= MOST_LISTED
    if listed and whole_blocks_fit(blocks, most):
        return None
    ctas = min(most, -(-blocks * tiles // least), blocks * shared_parts(tiles, config.latent))
    positions = min(where.seqlen_q(q), config.tiles.positions_per_cta)
    shared = Shared(ctas, least, blocks, positions, config.heads_per_tile)
    rows = shared.slots * shared.positions * shared.heads
    fit = max(rows, q.shape[-2] * where.rows(q)) <= MAX_PARTIAL_ROWS
    return shared if fit else None


def most_keys(k, where: Where) -> int:
    """An upper bound from metadata: keys that a sequence can have."""
    if where.tensors.page_table is not None:
        keys = where.tensors.page_table.shape[1] * k.shape[1]
    else:
        keys = k.shape[0] if where.kv_layout == "packed" else k.shape[1]
    return keys if not where.max_seqlen_k else min(keys, where.max_seqlen_k)


def _most_visible(options: Options, seqlen_q: int) -> int:
    """Keys that the queries of a sequence see together under a window or in chunks."""
    mask, sizes = options.mask.mask, options.mask.sizes
    if isinstance(mask, masks.Window) and mask.left:
        return sum(sizes) + seqlen_q
    if isinstance(mask, (masks.Chunked, masks.ChunkedCausal)):
        return sizes[0] + seqlen_q
    return 1 << 30


@cache
def num_sms(device: torch.device) -> int:
    if device.type != "cuda":
        return EMULATED_SMS
    return torch.cuda.get_device_properties(device).multi_processor_count
