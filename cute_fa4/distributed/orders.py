"""The rows of a sequence on each rank: cutting a tensor, positions, and reassembly.

contiguous    rank r has the r-th of `ranks` equal pieces
zigzag        rank r has the r-th of 2 * ranks equal pieces, and the r-th from the end: equal work under causal masks
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cute_fa4.distributed.geometry import ORDERS, chunks_of


def shard(
    tensor: torch.Tensor, rank: int, ranks: int, *, order: str = "zigzag", dim: int = 1
) -> torch.Tensor:
    """The rows of a rank, a copy. The rows of the whole are a multiple of ranks, with zigzag of 2 * ranks.

    >>> shard(torch.arange(8), 1, 2, dim=0)
    tensor([2, 3, 4, 5])
    """
    rows = tensor.shape[dim]
    check_rows(f"tensor: {rows} rows", rows, ranks, order)
    chunks = chunks_of(rank, ranks, rows // ranks, order)
    return torch.cat([tensor.narrow(dim, chunk.first, chunk.rows) for chunk in chunks], dim)


def unshard(pieces: Sequence[torch.Tensor], *, order: str = "zigzag", dim: int = 1) -> torch.Tensor:
    """The whole of the pieces of all ranks, in the order of the ranks.

    >>> unshard([shard(torch.arange(8), r, 2, dim=0) for r in range(2)], dim=0)
    tensor([0, 1, 2, 3, 4, 5, 6, 7])
    """
    ranks, rows = len(pieces), pieces[0].shape[dim]
    check_rows(f"pieces: {ranks} of {rows} rows", rows * ranks, ranks, order)
    places = [
        (chunk.first, piece.narrow(dim, chunk.at, chunk.rows))
        for rank, piece in enumerate(pieces)
        for chunk in chunks_of(rank, ranks, rows, order)
    ]
    return torch.cat([piece for _, piece in sorted(places, key=lambda place: place[0])], dim)


def positions(rank: int, ranks: int, rows: int, *, order: str = "zigzag") -> torch.Tensor:
    """(rows,) int64: positions of a rank's rows in the sequence, for rotary embeddings.

    >>> positions(0, 2, 4)
    tensor([0, 1, 6, 7])
    """
    check_rows(f"rows: {rows}", rows * ranks, ranks, order)
    chunks = chunks_of(rank, ranks, rows, order)
    return torch.cat([torch.arange(chunk.first, chunk.end) for chunk in chunks])


def check_rows(what: str, rows: int, ranks: int, order: str) -> None:
    """Refuse rows of a whole sequence that do not make equal pieces."""
    check_order(order)
    pieces = 2 * ranks if order == "zigzag" else ranks
    if rows % pieces:
        raise ValueError(
            f"{what} on {ranks} ranks in {order} order; accepted: a multiple of {pieces} in all, for {pieces} equal "
            "pieces; pad the sequence and pass cu_seqlens=[0, its length]"
        )


def check_order(order) -> None:
    if order not in ORDERS:
        raise ValueError(f"order: {order!r}; accepted: {', '.join(map(repr, ORDERS))}")
