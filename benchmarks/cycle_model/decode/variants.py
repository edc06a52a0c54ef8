"""The small launches whose emulator runs give the events of a CTA, and flash-attn-4's decode kernels.

A launch is one sequence with a number of key tiles and a key head for each block of the recorded CTA. A single
query sees every key; several see a causal mask, aligned to the end of the keys.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.cycle_model.decode.problems import DecodeProblem

KEYS_A_TILE = 128
# Key tiles for which a CTA is simulated; after the last one the cycles grow by the steady state.
TILES = (1, 2, 3, 4, 6, 8, 16)
# Another one where the ring holds so many tiles of K or V that 16 key tiles are nearly all on their way at once.
DEEP_RING, TILES_OF_DEEP_RING = 16, 40
# The cost of a further block, or part of a block, comes from a CTA with this many of them.
FURTHER_TILES = (1, 2, 4, 8)
FURTHER_BLOCKS = 3


@dataclass(frozen=True)
class Work:
    """key tiles of a block, or of each of its parts; blocks that the recorded CTA does; parts that it does of each."""

    tiles: int
    blocks: int = 1
    parts: int = 1

    @property
    def keys(self) -> int:
        return self.tiles * self.parts * KEYS_A_TILE


def works(goes_on: bool, runs: bool = False, slots: int = 0) -> list[Work]:
    """The launches emulated for a kernel, longest first: align.py takes the order of lines from the first trace, and in
    a short trace the last key tile, which is special, comes early.

    goes_on: a CTA does several blocks; runs: and several parts of a block; slots: of the ring
    """
    tiles = TILES + (TILES_OF_DEEP_RING,) * (slots >= DEEP_RING)
    further = FURTHER_TILES if goes_on else ()
    found = [*map(Work, tiles), *(Work(n, FURTHER_BLOCKS) for n in further)]
    if runs:
        found += [Work(n, parts=FURTHER_BLOCKS) for n in FURTHER_TILES]
    return sorted(found, key=lambda work: work.tiles * work.blocks * work.parts, reverse=True)


@dataclass(frozen=True)
class TheirKernel:
    """A decoding kernel of flash-attn-4, for pages of a key tile: the cp.async of other page sizes is not modeled."""

    head_dim: int
    group: int
    seqlen_q: int
    split: bool

    page_size = KEYS_A_TILE

    @classmethod
    def of(cls, problem: DecodeProblem, split: bool) -> TheirKernel:
        return cls(problem.head_dim, problem.group, problem.seqlen_q, split)

    @property
    def causal(self) -> bool:
        return self.seqlen_q > 1

    @property
    def goes_on(self) -> bool:
        """Where keys are not split its CTAs stay and stride over the blocks."""
        return not self.split

    def __str__(self):
        words = f"flash-attn-4 decode d{self.head_dim} group {self.group} q {self.seqlen_q}"
        return words + " split" * self.split


# flash-attn-4 4.0.0b36, interface.py, num_splits_heuristic: at most this many parts; no split up to four key tiles.
THEIR_MOST_PARTS = 128
THEIR_UNSPLIT_TILES = 4


def their_queues(problem: DecodeProblem, split: bool, sms: int) -> tuple[int, list[list[int]]]:
    """(parts, key tiles of the blocks of every CTA) of flash-attn-4; split: in as many parts as its heuristic says."""
    tiles = [-(-keys // KEYS_A_TILE) for keys in problem.lengths]
    blocks, longest = problem.batch * problem.heads_kv, max(tiles)
    parts = 1
    if split and longest > THEIR_UNSPLIT_TILES:
        parts = max(1, min(sms // blocks, THEIR_MOST_PARTS, longest))
    cut = []
    for n in tiles:
        each = -(-n // parts)
        cut += [max(0, min(each, n - i * each)) for i in range(parts)] * problem.heads_kv
    if parts > 1:
        return parts, [[n] for n in cut]
    return parts, [cut[cta::sms] for cta in range(min(sms, len(cut)))]
