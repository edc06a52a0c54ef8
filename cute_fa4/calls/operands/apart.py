"""The outputs of a call share no memory with its other tensors: one block reads while another writes.

    written     out; with new rows also k_cache and v_cache
    read        everything else, and for each written tensor the other written ones

Addresses change from call to call while shapes and strides stay, so a plan asks again (Plan.admits, Append.admits).
"""

from __future__ import annotations

from typing import TypeGuard

import torch

from cute_fa4.calls.operands.memory import may_overlap, overlaps_itself


def check_apart(written: dict[str, object], read: dict[str, object]) -> None:
    """Raises ValueError that names both tensors of a pair that may share a byte. Non-tensors are skipped.

    A written tensor must not overlap itself, either.
    """
    places = {name: tensor for name, tensor in written.items() if _has_place(tensor)}
    for name, tensor in places.items():
        if overlaps_itself(tensor):
            raise ValueError(
                f"{name}: strides {tensor.stride()} for shape {tuple(tensor.shape)} put several elements at one "
                "address; accepted: every element in its own place, because it is written; copy with "
                f"{name}.contiguous()"
            )
    names = list(places)
    for i, name in enumerate(names):
        for other in names[i + 1 :]:
            if may_overlap(places[name], places[other]):
                raise ValueError(
                    f"{other}: shares memory with {name}, and both are written; accepted: memory of its own; allocate "
                    f"two tensors, or slice them side by side from one; copy with {other}.clone()"
                )
        for other, seen in read.items():
            if _has_place(seen) and may_overlap(places[name], seen):
                raise ValueError(
                    f"{other}: shares memory with {name}, which is written; accepted: memory of its own; copy with "
                    f"{other}.clone()"
                )


def named_aux(aux) -> dict[str, object]:
    """aux_tensors as messages name them; a non-sequence is refused elsewhere."""
    if not isinstance(aux, (list, tuple)):
        return {}
    return {f"aux_tensors[{i}]": tensor for i, tensor in enumerate(aux)}


def _has_place(tensor: object) -> TypeGuard[torch.Tensor]:
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and tensor.numel() > 0
    )
