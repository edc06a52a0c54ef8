"""torch.autocast: the dtype in which q, k and v are taken.

As scaled_dot_product_attention has it: inside a region that is enabled for their device, float32, bf16 and fp16 tensors
are taken in the dtype of the region, and float64 stays and is refused. out has the dtype of the region. Tensors
that are written, out= and the caches, are never cast: they must have that dtype already.
"""

from __future__ import annotations

import torch

TYPES = ("cuda", "cpu")  # device types that have kernels
_CAST = (torch.float32, torch.bfloat16, torch.float16)
_KERNELS = (torch.bfloat16, torch.float16)

# Whether a region is enabled for any device; the query takes a tenth of a microsecond.
is_any_enabled = torch._C._is_any_autocast_enabled


def cast(*tensors) -> tuple:
    """The tensors cast to the dtype of the region; other values are unchanged."""
    return tuple(_cast(tensor) for tensor in tensors)


def _cast(tensor):
    if not isinstance(tensor, torch.Tensor) or tensor.dtype not in _CAST:
        return tensor
    device = tensor.device.type
    if device not in TYPES or not torch.is_autocast_enabled(device):
        return tensor
    dtype = torch.get_autocast_dtype(device)
    return tensor.to(dtype) if dtype in _KERNELS else tensor
