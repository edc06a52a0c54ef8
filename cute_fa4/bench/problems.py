"""Problems: the shape of one attention call, its operations and bytes, and random inputs for it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cute_fa4.dtypes import UNQUANTIZED, bytes_of, torch_of

DTYPES = torch_of(UNQUANTIZED)
SEED = 0


@dataclass(frozen=True)
class Problem:
    """One call. Query i has position i + seqlen_k - seqlen_q: the last query sees the last key.

    window     a query sees this many keys before its own, and none after it; None: no window
    page_size  keys of a page of the paged cache; 0: keys are contiguous
    """

    batch: int
    seqlen_q: int
    seqlen_k: int
    heads_q: int
    heads_kv: int
    head_dim: int
    causal: bool = False
    window: int | None = None
    page_size: int = 0
    dtype: str = "bf16"

    def __post_init__(self):
        if self.heads_q % self.heads_kv:
            raise ValueError(
                f"heads_q: {self.heads_q} with heads_kv {self.heads_kv}; accepted: a multiple of heads_kv"
            )

    @property
    def group(self) -> int:
        return self.heads_q // self.heads_kv

    @property
    def hides_the_future(self) -> bool:
        return self.causal or self.window is not None

    @property
    def window_size(self) -> tuple[int | None, int | None]:
        """(left, right) as the attention functions take it."""
        return (None, None) if self.window is None else (self.window, 0)

    @property
    def visible_pairs(self) -> int:
        """Number of visible (query, key) pairs of one head and sequence.

        >>> Problem(1, 4, 4, 1, 1, 64).visible_pairs, Problem(1, 4, 4, 1, 1, 64, causal=True).visible_pairs
        (16, 10)
        """
        if not self.hides_the_future:
            return self.seqlen_q * self.seqlen_k
        first = self.seqlen_k - self.seqlen_q
        reach = self.seqlen_k if self.window is None else self.window + 1
        return sum(min(max(first + i + 1, 0), reach) for i in range(self.seqlen_q))

    @property
    def flops(self) -> int:
        """Multiplications and additions of both products over visible pairs, without softmax.

        A causal square has S (S + 1) / 2 pairs; tables that count S^2 / 2 are lower by a factor 1 + 1 / S.
        """
        return 4 * self.head_dim * self.visible_pairs * self.heads_q * self.batch

    @property
    def bytes(self) -> int:
        """Bytes of q and out, of the visible keys and values once, and of the page table."""
        first = 0
        if self.window is not None:
            first = max(0, self.seqlen_k - self.seqlen_q - self.window)
        rows = 2 * self.seqlen_q * self.heads_q + 2 * (self.seqlen_k - first) * self.heads_kv
        size = bytes_of(self.dtype, 1)
        table = 4 * -(-self.seqlen_k // self.page_size) if self.page_size else 0
        return self.batch * (rows * self.head_dim * size + table)

    @property
    def is_decode(self) -> bool:
        """One query per sequence: the cache is read once, so memory is the bound and the result is in GB/s."""
        return self.seqlen_q == 1

    def __str__(self):
        mask = "causal" if self.causal else "full"
        mask = mask if self.window is None else f"window {self.window}"
        return mask if not self.page_size else f"{mask}, pages of {self.page_size}"


@dataclass(frozen=True)
class Training(Problem):
    """The backward pass of a call: gradients of q, k and v."""

    def __post_init__(self):
        super().__post_init__()
        if self.page_size:
            raise ValueError(f"page_size: {self.page_size} with training; accepted: 0")

    def __str__(self):
        return f"{super().__str__()}, gradients"


@dataclass(frozen=True)
class Inputs:
    """q, k, v: (batch, seqlen, heads, head_dim); in pages if the problem has pages."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    k_pages: torch.Tensor | None = None
    v_pages: torch.Tensor | None = None
    page_table: torch.Tensor | None = None
    lengths: torch.Tensor | None = None


def make_inputs(problem: Problem, device) -> Inputs:
    """Normal random numbers: zeros and small integers draw less power, and run at a higher clock."""
    generator = torch.Generator(device).manual_seed(SEED)

    def normal(seqlen: int, heads: int) -> torch.Tensor:
        shape = (problem.batch, seqlen, heads, problem.head_dim)
        return torch.randn(shape, generator=generator, device=device).to(DTYPES[problem.dtype])

    q = normal(problem.seqlen_q, problem.heads_q)
    k, v = (normal(problem.seqlen_k, problem.heads_kv) for _ in "kv")
    if not problem.page_size:
        return Inputs(q, k, v)
    return Inputs(q, k, v, *_in_pages(k, v, problem.page_size, generator))


def make_dout(problem: Training, device) -> torch.Tensor:
    """A gradient of the output."""
    generator = torch.Generator(device).manual_seed(SEED + 1)
    shape = (problem.batch, problem.seqlen_q, problem.heads_q, problem.head_dim)
    return torch.randn(shape, generator=generator, device=device).to(DTYPES[problem.dtype])


def _in_pages(k, v, page_size: int, generator):
    """One pool of pages in random order, with K and V of a page adjacent, as in serving engines."""
    batch, seqlen, heads, depth = k.shape
    per_sequence = -(-seqlen // page_size)
    number = batch * per_sequence
    order = torch.randperm(number, generator=generator, device=k.device)
    pool = k.new_zeros(number, 2, page_size, heads, depth)
    for i, rows in enumerate((k, v)):
        unused = per_sequence * page_size - seqlen
        padded = torch.nn.functional.pad(rows, (0, 0, 0, 0, 0, unused))
        pool[order, i] = padded.reshape(number, page_size, heads, depth)
    table = order.to(torch.int32).view(batch, per_sequence)
    lengths = torch.full((batch,), seqlen, dtype=torch.int32, device=k.device)
    return pool[:, 0], pool[:, 1], table, lengths
