"""Whether the grid of a launch has room for the CTAs of a call: as many as its family has for its rows."""

import torch

from cute_fa4.calls.operands.tensors import MAX_CTAS
from cute_fa4.calls.request import Where


def ctas_of(config, queries: int, seqlen_q: int, heads: int, batch: int) -> int:
    """CTAs of a launch; queries: of packed tensors, whose sequences have seqlen_q at most."""
    positions = config.tiles.positions_per_block
    blocks = batch * -(-seqlen_q // positions)
    if config.q_layout == "packed":
        blocks = min(blocks, queries // positions + batch)
    return blocks * (heads // config.heads_per_tile) * config.tiles.cta_group


def check_grid(config, q: torch.Tensor, where: Where) -> None:
    """At most MAX_CTAS of them; split keys have several times as many, of far fewer rows (split.py)."""
    ctas = ctas_of(config, q.shape[0], where.seqlen_q(q), q.shape[-2], where.batch(q))
    if ctas > MAX_CTAS:
        rows = config.tiles.positions_per_cta * config.heads_per_tile
        raise ValueError(
            f"q: shape {tuple(q.shape)} takes a grid of {ctas} CTAs of {rows} query rows; "
            f"accepted: at most {MAX_CTAS}; split the call along batch"
        )
