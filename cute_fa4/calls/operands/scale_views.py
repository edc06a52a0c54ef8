"""The scales of a checked call, and the views of them that the kernel takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from cute_fa4.calls.operands.memory import with_plain_strides
from cute_fa4.dtypes import E8M0
from cute_fa4.layouts.cache_scales import LINEAR
from cute_fa4.operands import CallTensors
from cute_fa4.scales import Scales

BLOCKS = E8M0.torch  # dtype of block scales
OF_CACHE_BLOCKS = {"k_block_scale": "k", "v_block_scale": "v"}
WORD = torch.int32  # of four of these scales, as the kernel reads them


def are_of_blocks(scale) -> bool:
    """Whether an argument has scales of blocks of a row of q or k (MXFP8); None has not."""
    return getattr(scale, "dtype", None) is BLOCKS


@dataclass(frozen=True)
class GivenScales:
    """The scales of a call, checked.

    tensors  the given ones, by name
    said     what each scale belongs to
    views    how the kernel takes them
    v_layout  of v_block_scale (layouts/cache_scales.py)
    """

    tensors: dict[str, torch.Tensor]
    said: Scales
    views: ScaleViews
    v_layout: str = LINEAR


def is_by_row(scale: torch.Tensor, by_head: tuple) -> bool:
    """Whether a scale has a number for each token and head. by_head: (batch, heads_kv)"""
    return scale.numel() != 1 and tuple(scale.shape) != by_head


@dataclass(frozen=True)
class ScaleViews:
    """Scales as the kernel takes them; decided by the shapes of those that a call has.

    Scales per head are (batch, heads_kv). Scales per token have a depth of 1 for q; for k and v they have none and
    have rows first. Scales per block are bytes, rows first.

    sizes    (batch, heads_kv)
    changes  the function that makes a view of each given scale, by name
    """

    sizes: tuple
    changes: dict[str, Callable[[torch.Tensor], torch.Tensor]]

    @staticmethod
    def like(
        given: dict[str, torch.Tensor],
        sizes: tuple,
        rows: dict,
        heads_first: bool,
        v_layout: str = LINEAR,
    ):
        """rows: sizes of scales of tokens, by name; v_layout: as GivenScales has it"""
        found = ScaleViews(sizes, {})
        for name, scale in given.items():
            found.changes[name] = found._change(name, scale, rows.get(name), heads_first)
        if v_layout != LINEAR and "v_block_scale" in found.changes:
            found.changes["v_block_scale"] = _bytes_rows_first if heads_first else _bytes
        return found

    def _change(self, name: str, scale: torch.Tensor, of_rows: tuple | None, heads_first: bool):
        """The function that makes a view of a scale like this one."""
        if name in OF_CACHE_BLOCKS:
            if scale.shape[-1] % (
                WORD.itemsize // scale.dtype.itemsize
            ):  # in_words of blueprint/cache_blocks.py
                return _bytes_rows_first if heads_first else _bytes
            return _words_rows_first if heads_first else _words
        if are_of_blocks(scale):
            return _bytes_rows_first if heads_first and name == "k_descale" else _bytes
        if not is_by_row(scale, self.sizes):
            return _as_it_is if tuple(scale.shape) == self.sizes else self._of_one_number
        has_depth = scale.dim() > len(of_rows or ())
        if name == "q_descale":
            return _as_it_is if has_depth else _with_depth
        return {
            (False, False): _as_it_is,
            (False, True): _without_depth,
            (True, False): _rows_first,
            (True, True): _rows_first_without_depth,
        }[heads_first, has_depth]

    def _of_one_number(self, scale: torch.Tensor) -> torch.Tensor:
        return scale.as_strided(self.sizes, (0, 0))

    def with_one_number_for(self, names: list[str]) -> ScaleViews:
        """The same where some scales are one number."""
        return ScaleViews(self.sizes, self.changes | dict.fromkeys(names, self._of_one_number))

    def of_cache(self) -> ScaleViews:
        """The views of scales of k and v, as the append takes them: those of the blocks of a cache one by one."""
        of_bytes: dict[Callable, Callable] = {_words: _bytes, _words_rows_first: _bytes_rows_first}
        names = ("k_descale", "v_descale", *OF_CACHE_BLOCKS)
        changes = {name: self.changes[name] for name in names if name in self.changes}
        found = {name: of_bytes.get(change, change) for name, change in changes.items()}
        return ScaleViews(self.sizes, found)

    def of(self, tensors: CallTensors) -> tuple | None:
        """The scales of a call that has as many; None: there are none."""
        changes = self.changes.items()
        return tuple(change(getattr(tensors, name)) for name, change in changes) or None


def _as_it_is(scale: torch.Tensor) -> torch.Tensor:
    return scale


def _bytes(scale: torch.Tensor) -> torch.Tensor:
    return scale.view(torch.uint8)


def _bytes_rows_first(scale: torch.Tensor) -> torch.Tensor:
    return scale.view(torch.uint8).transpose(1, 2)


def _words(scale: torch.Tensor) -> torch.Tensor:
    return with_plain_strides(scale).view(WORD)


def _words_rows_first(scale: torch.Tensor) -> torch.Tensor:
    return _words(scale).transpose(1, 2)


def _with_depth(scale: torch.Tensor) -> torch.Tensor:
    return scale.unsqueeze(-1)


def _without_depth(scale: torch.Tensor) -> torch.Tensor:
    return scale.squeeze(-1)


def _rows_first(scale: torch.Tensor) -> torch.Tensor:
    return scale.transpose(1, 2)


def _rows_first_without_depth(scale: torch.Tensor) -> torch.Tensor:
    return scale.squeeze(-1).transpose(1, 2)
