"""What a call asks for, checked or not: where sequences lie, which options hold.

Where             tensors of lengths and pages, and the layouts that follow from them
CallTensors       the tensors of a call as the public functions pass them on, unchecked
Numbers, Choices  its options, likewise
Options           the same, checked (options.py)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch

from cute_fa4.masks import BoundMask
from cute_fa4.sm100.blueprint.score_mods import ScoreMod

# Tensors that say where sequences lie, by name; the last two are about rows of a cache.
TENSORS = (
    *("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "key_limit", "page_table"),
    *("cache_batch_idx", "cache_leftpad"),
)


class CallTensors(NamedTuple):
    """What a call reads and writes, unchecked; k and v may be those of a cache. None: not given.

    lengths  those of TENSORS, in their order
    aux      aux_tensors, which score_mod and mask_mod read
    new      rows to append to k, those to append to v, their offsets
    scales   those of scales.NAMES
    rope     those of rope.NAMES
    """

    q: object
    k: object
    v: object
    out: object
    lengths: tuple | None = None
    sink: object = None
    aux: object = None
    new: tuple | None = None
    scales: tuple | None = None
    rope: tuple | None = None


# Of a tuple of all of them: half of the time that the class takes, of which a repeated call has few microseconds.
call_tensors = partial(tuple.__new__, CallTensors)


def in_order(**given) -> tuple:
    """Of some of TENSORS by name all, as repeat.attend takes them; None: not given."""
    return tuple(map(given.get, TENSORS))


@dataclass(frozen=True)
class Where:
    """Where sequences lie and how long they are: int32 tensors on the device of q, or None."""

    cu_seqlens_q: torch.Tensor | None = None
    cu_seqlens_k: torch.Tensor | None = None
    seqused_q: torch.Tensor | None = None
    seqused_k: torch.Tensor | None = None
    key_limit: torch.Tensor | None = None
    page_table: torch.Tensor | None = None
    cache_batch_idx: torch.Tensor | None = None
    cache_leftpad: torch.Tensor | None = None
    excludes_new: bool = False  # seqused_k does not count the queries
    max_seqlen_q: int = 0  # of packed queries
    max_seqlen_k: int = 0  # at least the longest sequence of keys; 0: not known

    @property
    def tensors(self) -> tuple:
        """In the order of TENSORS."""
        return tuple(getattr(self, name) for name in TENSORS)

    @property
    def q_layout(self) -> str:
        return "dense" if self.cu_seqlens_q is None else "packed"

    @property
    def kv_layout(self) -> str:
        if self.page_table is not None:
            return "paged"
        return "dense" if self.cu_seqlens_k is None else "packed"

    def batch(self, q: torch.Tensor) -> int:
        return q.shape[0] if self.cu_seqlens_q is None else self.cu_seqlens_q.shape[0] - 1

    def rows(self, q: torch.Tensor) -> int:
        """Queries of all sequences, if each had as many as the longest may have."""
        return self.batch(q) * self.seqlen_q(q)

    def seqlen_q(self, q: torch.Tensor) -> int:
        """Queries of the longest sequence."""
        return q.shape[1] if self.cu_seqlens_q is None else self.max_seqlen_q


class Numbers(NamedTuple):
    """Options that are numbers or None, unchecked, in the order in which the public functions pass them on."""

    softmax_scale: object
    causal: object
    softcap: object
    max_seqlen_q: object
    max_seqlen_k: object


class Choices(NamedTuple):
    """The other options that are no tensors, likewise.

    in_float32  out is float32, to be merged with other results
    latent      v is the first columns of k (multi-head latent attention)
    """

    mask: object
    num_splits: object
    tokens_per_split: object
    pack_gqa: object
    score_mod: object
    mask_mod: object
    block_sparse_tensors: object
    kv_layout: object
    seqused_k_excludes_new: bool
    return_lse: bool
    in_float32: bool = False
    latent: bool = False


@dataclass(frozen=True)
class Options:
    """A checked call without q, k, v. sink: (heads_q,) or None; aux: tensors of score_mod and mask_mod.

    scales: of scales.NAMES, each a tensor or None; None: there are none
    rope: a rope.Rope, columns of k in a tensor of their own; None: k has all
    """

    softmax_scale: float
    mask: BoundMask
    score_mod: ScoreMod | None
    mask_mod: ScoreMod | None
    aux: tuple[torch.Tensor, ...]
    sink: torch.Tensor | None
    pack_gqa: bool | None
    num_splits: int | None = 1
    tokens_per_split: int | None = None
    latent: bool = False
    scales: tuple | None = None
    rope: object | None = None
