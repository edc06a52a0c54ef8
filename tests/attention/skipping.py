"""An oracle of skip-softmax in float64: the rule of sm100/steps/skipped.py, applied tile by tile."""

import math
from dataclasses import dataclass

import torch

from cute_fa4.sm100.work.lists.config import parts_of

WARP_ROWS, TILE_ROWS, CTA_ROWS, KEYS = 32, 128, 256, 128
CLOSE = 1e-4  # votes nearer to the threshold than this (natural log) have no certain outcome


@dataclass
class Skipped:
    """out (queries, heads, d), lse (heads, queries), `weighed`: as out with |v|.

    warps, tiles   what is skipped, in tiles of 32 and of 128 rows that see a key
    all_tiles      tiles of 128 rows that see a key
    """

    out: torch.Tensor
    lse: torch.Tensor
    weighed: torch.Tensor
    warps: int = 0
    tiles: int = 0
    all_tiles: int = 0


@dataclass(frozen=True)
class Rule:
    """The arguments of a call that the rule reads. visible(i, j): of one sequence; cap: of scores, 0: none.

    split: (parts, key tiles of a part, or 0 for even parts), as calls/split_keys/split.py has it; (1, 0): one part
    turns(row): the key tiles of the CTA whose first query is `row`, in the order of its list; None: it has no list
    share: lists that are longer are cut, as work/lists/config.py has it; 0: none is
    """

    factor: float
    scale: float
    packs: bool = False
    visible: object = None
    sink: torch.Tensor | None = None
    cap: float = 0.0
    split: tuple[int, int] = (1, 0)
    turns: object = None
    share: int = 0

    def begins(self, tiles: list[int]) -> list[int]:
        """The first key tiles of the parts of a CTA with these, in their order."""
        parts, tiles_each = self.split
        if self.share:
            parts = parts_of(len(tiles), self.share)
        each, more = divmod(len(tiles), parts)
        if tiles_each:
            return [tile for tile in tiles if tile == tiles[0] or tile % tiles_each == 0]
        places = (part * each + min(part, more) for part in range(parts))
        return [tiles[place] for place in places if place < len(tiles)]


def attention(q, k, v, rule: Rule) -> Skipped:
    """One sequence: q (queries, heads, d), k and v (keys, heads_kv, d)."""
    (queries, heads, _), (keys, heads_kv, _) = q.shape, k.shape
    q, k, v = q.double(), k.double(), v.double()
    found = Skipped(
        torch.zeros(queries, heads, v.shape[-1], dtype=torch.float64),
        torch.zeros(heads, queries, dtype=torch.float64),
        torch.zeros(queries, heads, v.shape[-1], dtype=torch.float64),
    )
    group = heads // heads_kv
    places = torch.arange(queries)[:, None], torch.arange(keys)[None]
    seen = torch.ones(queries, keys, dtype=torch.bool)
    if rule.visible is not None:
        seen = rule.visible(*places)
    for head in range(heads_kv):
        of_group = range(head * group, (head + 1) * group)
        for share in [of_group] if rule.packs else [[h] for h in of_group]:
            _tile_rows(q, k[:, head], v[:, head], list(share), seen, rule, found)
    return found


def _tile_rows(q, k, v, heads: list, seen, rule: Rule, found: Skipped) -> None:
    """The rows of heads that share tiles, position by position."""
    rows = [(i, h) for i in range(q.shape[0]) for h in heads]
    keys = k.shape[0]
    limit = min(math.log(rule.factor / keys), 0.0) if keys else 0.0
    for begin in range(0, len(rows), CTA_ROWS):
        of_cta = rows[begin : begin + CTA_ROWS]
        visible = torch.stack([seen[i] for i, _ in of_cta]).any(0).nonzero()
        ends = (int(visible[0]) // KEYS, int(visible[-1]) // KEYS + 1) if len(visible) else (0, 0)
        tiles = list(range(*ends)) if rule.turns is None else rule.turns(begin)
        for tile in range(0, len(of_cta), TILE_ROWS):
            of_tile = of_cta[tile : tile + TILE_ROWS]
            warps = range(0, len(of_tile), WARP_ROWS)
            votes = [
                _warp(q, k, v, of_tile[w : w + WARP_ROWS], (seen, tiles, limit), rule, found)
                for w in warps
            ]
            for of_key_tile in zip(*votes, strict=True):
                sees = [some for _, some in of_key_tile]
                skips = [skipped for skipped, _ in of_key_tile]
                found.all_tiles += any(sees)
                found.tiles += any(sees) and all(skips)
                found.warps += sum(s and some for s, some in of_key_tile)


def _warp(q, k, v, rows: list, where: tuple, rule: Rule, found: Skipped) -> list:
    """Attention of the rows of a warp; -> (skipped, whether a row sees a key) of each key tile of the CTA."""
    seen, tiles, limit = where
    s = torch.stack([q[i, h] @ k.T * rule.scale for i, h in rows])
    if rule.cap:
        s = rule.cap * torch.tanh(s / rule.cap)
    s = s.masked_fill(~torch.stack([seen[i] for i, _ in rows]), -math.inf)
    sinks = torch.full((len(rows),), -math.inf, dtype=torch.float64)
    if rule.sink is not None:
        sinks = rule.sink.double()[[h for _, h in rows]]
    highest, kept, votes = sinks, torch.zeros_like(s, dtype=torch.bool), []
    begins = rule.begins(tiles)
    for tile, begin in ((tile, KEYS * tile) for tile in tiles):
        own = s[:, begin : begin + KEYS].amax(1)
        if tile in begins[1:]:  # the first part counts the sink
            highest = torch.full_like(own, -math.inf)
        highest = torch.maximum(highest, own)
        weight = torch.where(own == -math.inf, -math.inf, own - highest)
        counts = tile not in begins
        skips = counts and bool((weight < limit).all())
        decides = float(weight.max())
        assert not counts or decides == 0 or abs(decides - limit) > CLOSE
        if not skips:
            kept[:, begin : begin + KEYS] = True
        votes.append((skips, bool((own != -math.inf).any())))
    s = s.masked_fill(~kept, -math.inf)
    lse = torch.logsumexp(torch.cat((s, sinks[:, None]), 1), 1)
    p = torch.exp(s - torch.where(lse == -math.inf, 0.0, lse)[:, None])
    for row, (i, h) in enumerate(rows):
        found.out[i, h], found.lse[h, i] = p[row] @ v, lse[row]
        found.weighed[i, h] = p[row] @ v.abs()
    return votes
