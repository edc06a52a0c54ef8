"""The request of a call, checked or not: where sequences lie, which options hold.

Where             the tensors of a call, checked, and what else says where sequences lie
Numbers, Choices  its options as the public functions pass them on, unchecked; its tensors are operands.CallTensors
Options           the same, checked (options.py)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch

from cute_fa4.calls.operands.rope_view import Rope
from cute_fa4.calls.operands.scale_views import GivenScales
from cute_fa4.layouts.cache_scales import LINEAR
from cute_fa4.masks import BoundMask
from cute_fa4.operands import CallTensors
from cute_fa4.sm100.blueprint.score_mods import ScoreMod


@dataclass(frozen=True)
class Where:
    """Where sequences lie and how long they are.

    tensors  those of a call, checked; k and v have the rows of a page first. Lengths and pages count here
    """

    tensors: CallTensors = CallTensors()
    excludes_new: bool = False  # seqused_k does not count the queries
    max_seqlen_q: int = 0  # of packed queries
    max_seqlen_k: int = 0  # at least the longest sequence of keys; 0: not known

    def replaced(self, **tensors) -> Where:
        """The same with other tensors, by name."""
        return replace(self, tensors=self.tensors._replace(**tensors))

    @property
    def q_layout(self) -> str:
        return self.tensors.q_layout

    @property
    def kv_layout(self) -> str:
        return self.tensors.kv_layout

    def batch(self, q: torch.Tensor) -> int:
        return self.tensors._replace(q=q).batch

    def rows(self, q: torch.Tensor) -> int:
        """Queries of all sequences, if each had as many as the longest may have."""
        return self.batch(q) * self.seqlen_q(q)

    def seqlen_q(self, q: torch.Tensor) -> int:
        """Queries of the longest sequence."""
        return q.shape[1] if self.q_layout == "dense" else self.max_seqlen_q


class Numbers(NamedTuple):
    """Options that are numbers or None, unchecked, in the order in which the public functions pass them on."""

    softmax_scale: object = None
    causal: object = False
    softcap: object = 0.0
    max_seqlen_q: object = None
    max_seqlen_k: object = None
    skip_softmax_threshold_scale_factor: object = None


class Choices(NamedTuple):
    """The other options that are no tensors, likewise.

    in_float32  out is float32, to be merged with other results
    latent      v is the first columns of k (multi-head latent attention)
    return_max  lse has the largest scores, too: (2, batch, heads, seqlen_q); keys are not split
    block_sparse_tensors  as the caller gives them, or blocks.Blocks, whose tensors are in CallTensors
    """

    mask: object = None
    num_splits: object = 1
    tokens_per_split: object = None
    batch_invariant: object = None
    pack_gqa: object = None
    score_mod: object = None
    mask_mod: object = None
    block_sparse_tensors: Any = None
    kv_layout: object = "NHD"
    v_block_scale_layout: object = LINEAR
    four_over_six: bool = False
    seqused_k_excludes_new: bool = False
    return_lse: bool = False
    in_float32: bool = False
    latent: bool = False
    return_max: bool = False


def asked_of(options: Mapping[str, object]) -> tuple:
    """window_size, Numbers and Choices as plain tuples, from options by name, of which any may be missing."""
    numbers, choices = (
        tuple(options.get(name, default) for name, default in group._field_defaults.items())
        for group in (Numbers, Choices)
    )
    return options.get("window_size", (None, None)), numbers, choices


class ListedBlocks(Protocol):
    """Sizes of listed key blocks (operands/blocks.py), and their fields of a configuration."""

    @property
    def queries(self) -> int: ...

    @property
    def fields(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Options:
    """A checked call without q, k, v. sink: (heads_q,) or None; aux: tensors of score_mod and mask_mod.

    scales: None: there are none
    return_max: as Choices
    rope: columns of k in a separate tensor; None: k has all
    blocks: None: no key blocks are listed
    skip_factor: of the threshold for skipped key tiles (skipping.py); None: none are skipped
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
    batch_invariant: bool | None = None
    latent: bool = False
    return_max: bool = False
    scales: GivenScales | None = None
    rope: Rope | None = None
    blocks: ListedBlocks | None = None
    skip_factor: float | None = None
