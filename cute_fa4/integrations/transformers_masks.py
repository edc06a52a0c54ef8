"""Masks of Hugging Face transformers, as patterns that the kernel supports where possible.

transformers requests masks once or twice per forward pass, as compositions of functions of indices:

    create_causal_mask                causal                             masks.causal()
    ..._sliding_window_causal_mask    and(window, causal)                masks.window(size - 1, 0)
    create_bidirectional_mask         all                                masks.full()
    packed documents                  and(same document, causal)         masks.causal(), mask_mod
    a padded batch                    an added tensor (batch, length)    key_limit, or mask_mod

For these `mask` returns a LazyMask, which has a Pattern and no elements. All others (chunks, unions, custom
functions) become a boolean tensor, which is exact, but is read for every score and skips no key tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from cute_fa4 import masks
from cute_fa4.masks import BoundMask
from cute_fa4.sm100.blueprint.score_mods import ScoreMod


@dataclass(frozen=True)
class Pattern:
    """The mask of a forward pass, in terms of flash_attn_varlen_func.

    num_keys    number of keys; the last has the position of the last query. None: all of the layer. A cache of fixed
                size has more, unwritten keys. An int, or (batch,) int32 if only the device knows it
    key_limit   (batch,) int32: keys from this one on are padding
    shown       (batch, keys) uint8: 0 for padding
    documents   (batch, seqlen) int32: a query sees the keys of its own document
    """

    mask: BoundMask
    num_keys: int | torch.Tensor | None = None
    key_limit: torch.Tensor | None = None
    shown: torch.Tensor | None = None
    documents: torch.Tensor | None = None

    def to(self, device) -> Pattern:
        moved: dict[str, Any] = {
            name: x.to(device) for name, x in vars(self).items() if isinstance(x, torch.Tensor)
        }
        return replace(self, **moved)

    @property
    def is_only_bounds(self) -> bool:
        return all(x is None for x in (self.num_keys, self.key_limit, self.shown))

    def options(self) -> dict:
        """Options of flash_attn_varlen_func, for the first num_keys keys if that is an int."""
        options: dict[str, Any] = {"mask": self.mask, "key_limit": self.key_limit}
        if isinstance(self.num_keys, torch.Tensor):
            options["seqused_k"] = self.num_keys
        if self.shown is not None:
            options |= {"mask_mod": KEY_IS_SHOWN, "aux_tensors": [self.shown]}
        if self.documents is not None:
            options |= {"mask_mod": SAME_DOCUMENT, "aux_tensors": [self.documents]}
        return options


def _key_is_shown(batch, head, q_idx, kv_idx, aux):
    return aux[0][batch, kv_idx] != 0


def _same_document(batch, head, q_idx, kv_idx, aux):
    return aux[0][batch, q_idx] == aux[0][batch, kv_idx]


KEY_IS_SHOWN, SAME_DOCUMENT = ScoreMod.of(_key_is_shown), ScoreMod.of(_same_document)


class LazyMask(torch.Tensor):
    """A boolean mask (batch, 1, seqlen_q, seqlen_k) as a pattern; any operation but a move materializes it first.

    Most models pass masks through unchanged. Some slice or combine them, and get the materialized mask.
    """

    pattern: Pattern
    materialise: Callable[[], torch.Tensor]

    @staticmethod
    def of(shape, device, pattern: Pattern, materialise: Callable[[], torch.Tensor]) -> LazyMask:
        nothing = torch.zeros((), dtype=torch.bool, device=device).expand(shape)
        self = nothing.as_subclass(LazyMask)
        self.pattern, self.materialise = pattern, materialise
        return self

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function in METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **kwargs)
        if function is torch.Tensor.to and isinstance(args[0], LazyMask) and "dtype" not in kwargs:
            device = args[1] if len(args) == 2 else kwargs.get("device")
            if isinstance(device, (str, int, torch.device)):
                return args[0]._moved(torch.device(device))
        args, kwargs = tree_map_only(LazyMask, lambda x: x.materialise(), (args, kwargs))
        return function(*args, **kwargs)

    def _moved(self, device) -> LazyMask:
        if device == self.device:
            return self
        return LazyMask.of(
            self.shape, device, self.pattern.to(device), lambda: self.materialise().to(device)
        )


# Attributes of a tensor that do not need its elements.
METADATA = {
    *(getattr(torch.Tensor, name).__get__ for name in "shape ndim dtype device layout is_cuda".split()),
    *(torch.Tensor.dim, torch.Tensor.size, torch.Tensor.stride),
}  # fmt: skip


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable | None = None,
    attention_mask: torch.Tensor | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **others,
) -> torch.Tensor:
    """The mask of queries i + q_offset and keys j + kv_offset; parameters are those of transformers' sdpa_mask.

    attention_mask  (batch, length) bool: keys that are not padding

    The host reads attention_mask here, not in the layers: is there padding, and is all of it on the right?
    Under torch.compile nothing is read, and every mask is a tensor.
    """
    from transformers.masking_utils import causal_mask_function, sdpa_mask

    function = causal_mask_function if mask_function is None else mask_function

    def materialise() -> torch.Tensor:
        arguments: dict[str, Any] = dict(  # its annotations have no q_offset on the device
            batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset,
            kv_offset=kv_offset, mask_function=function, attention_mask=attention_mask,
            allow_is_causal_skip=False, use_vmap=use_vmap, device=device,
        )  # fmt: skip
        elements = sdpa_mask(**arguments)
        assert elements is not None  # nothing may be skipped
        return elements

    found = None
    if not torch.compiler.is_compiling():
        # from a lazy module, which PyTorch 2.8's Dynamo cannot trace
        from transformers import masking_utils

        found = recognised(function, masking_utils)
    if found is None:
        return materialise()
    left, right, documents = found
    bounds = masks.window(left, right)
    # The last has the last query's position.
    keys: int | torch.Tensor | None = q_length + q_offset - kv_offset
    if bounds == masks.full() or (isinstance(keys, int) and keys == kv_length):
        keys = None
    elif right != 0 or (isinstance(keys, int) and keys > kv_length):
        return materialise()
    hidden = {}
    if attention_mask is not None:
        if documents is not None:
            return materialise()
        keys = None if keys is None else int(keys)
        hidden = _padding(attention_mask[:, kv_offset:], kv_length if keys is None else keys)
    if isinstance(keys, torch.Tensor):
        keys = keys.to(torch.int32).reshape(1).repeat(batch_size)
    pattern = Pattern(bounds, keys, documents=documents, **hidden)
    return LazyMask.of((batch_size, 1, q_length, kv_length), device, pattern, materialise)


def _padding(real: torch.Tensor, num_keys: int) -> dict:
    """Pattern fields for real (batch, length) bool: which of the first num_keys keys are not padding."""
    real = torch.nn.functional.pad(real, (0, max(0, num_keys - real.shape[1])))[:, :num_keys]
    counts = real.sum(dim=1, dtype=torch.int32)
    first = torch.arange(num_keys, device=real.device) < counts[:, None]
    none, all_on_the_right = torch.stack([real.all(), (real == first).all()]).tolist()
    if none:
        return {}
    return {"key_limit": counts} if all_on_the_right else {"shown": real.view(torch.uint8)}


def recognised(
    function: Callable, makers
) -> tuple[int | None, int | None, torch.Tensor | None] | None:
    """(left, right, documents) of a mask function created by the module `makers`; None for any other.

    left and right are those of masks.window. A function is recognized by its code object, so a modified one is not
    recognized and is evaluated instead.
    """
    if function is makers.causal_mask_function:
        return None, 0, None
    if function is makers.bidirectional_mask_function:
        return None, None, None
    if size := _made_by(function, makers.sliding_window_overlay):
        return size["sliding_window"] - 1, None, None
    if size := _made_by(function, makers.sliding_window_bidirectional_overlay):
        return size["sliding_window"], size["sliding_window"], None
    if packed := _made_by(function, makers.packed_sequence_mask_function):
        return None, None, packed["packed_sequence_mask"].to(torch.int32)
    if not (both := _made_by(function, makers.and_masks)):
        return None
    parts = list(both["mask_functions"])
    for i, part in enumerate(parts):
        # Positions that restart in every document have the same differences as indices within it.
        remapped = _made_by(part, getattr(makers, "remap_positions_for_packed_sequence", None))
        if remapped and any(_made_by(p, makers.packed_sequence_mask_function) for p in parts):
            parts[i] = remapped["mask_function"]
    found = [known for part in parts if (known := recognised(part, makers)) is not None]
    if len(found) < len(parts) or sum(part[2] is not None for part in found) > 1:
        return None
    left, right, documents = (
        [x for x in side if x is not None] for side in zip(*found, strict=True)
    )
    return min(left, default=None), min(right, default=None), (documents or [None])[0]


def _made_by(function: Callable, maker: Callable | None) -> dict | None:
    """The closure of function, if maker defines and returns it."""
    code = getattr(function, "__code__", None)
    if maker is None or code is None or not any(code is c for c in maker.__code__.co_consts):
        return None
    cells = (cell.cell_contents for cell in function.__closure__ or ())
    return dict(zip(code.co_freevars, cells, strict=True))
