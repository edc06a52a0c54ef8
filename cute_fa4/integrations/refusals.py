"""What other packages' functions take and kernels here do not: refused by name, never passed over."""

from __future__ import annotations

import torch

from cute_fa4.system.messages import shown


def check_off(**parameters) -> None:
    """Each is name=(value, off). NotImplementedError names the first whose value is another than off.

    >>> check_off(dropout_p=(0.0, 0.0), alibi_slopes=(None, None))
    >>> check_off(dropout_p=(0.1, 0.0))
    Traceback (most recent call last):
    NotImplementedError: dropout_p: 0.1: not built; accepted: 0.0
    """
    for name, (value, off) in parameters.items():
        if value is not off and (isinstance(value, torch.Tensor) or value != off):
            raise NotImplementedError(f"{name}: {shown(value)}: not built; accepted: {off!r}")
