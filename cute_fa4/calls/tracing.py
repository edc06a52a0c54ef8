"""Who sees a call of the public functions: nobody, or a tracer, which is given an operator (cute_fa4.operators)."""

from __future__ import annotations

import torch
from torch.compiler import is_dynamo_compiling

_Tensor = torch.Tensor
_active_modes = torch._C._len_torch_dispatch_stack


def is_traced(q) -> bool:
    """Whether an operator must be seen: by a compiler, a dispatch mode such as FakeTensorMode, a subclass of Tensor."""
    return is_dynamo_compiling() or type(q) is not _Tensor or _active_modes() > 0
