"""Whether a tracer or transform observes a call of the public functions; if so, it gets an operator.

torch.compile, torch.export, make_fx, fake tensors     one node (cute_fa4.operators)
torch.func.functionalize                               the operator, whose schema names what it writes
torch.vmap                                             the operator's rule: one more batch dimension
forward-mode derivatives (jvp, linearize, dual numbers) refused, as gradients are
torch.jit.trace, torch.onnx.export(dynamo=False)        refused: they would record the allocation of out alone
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._C import _functorch
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

_Tensor = torch.Tensor
_active_modes = torch._C._len_torch_dispatch_stack
_transforms = _functorch.peek_interpreter_stack
_GRAD = _functorch.TransformType.Grad
_recorder = torch._C._get_tracing_state
_set_recorder = torch._C._set_tracing_state  # type: ignore[attr-defined]
_PROXIES = torch._C._TorchDispatchModeKey.PROXY


def is_traced(q) -> bool:
    """Whether an operator must be seen: by a compiler, a mode, a subclass of Tensor, a transform or a recorder."""
    return (
        is_dynamo_compiling()
        or type(q) is not _Tensor
        or _active_modes() > 0
        or _transforms() is not None
        or _recorder() is not None
        or forward_ad._current_level >= 0
    )


def is_transformed() -> bool:
    """Whether a transform of torch.func is at work, which autograd's nodes do not see."""
    return _transforms() is not None


def is_recorded_by_fx() -> bool:
    """Whether make_fx, which export and torch's compiler use, records every operator."""
    return torch._C._get_dispatch_mode(_PROXIES) is not None


@contextmanager
def outside_of_transforms() -> Iterator[None]:
    """In it, no transform of torch.func and no torch.jit.trace sees tensors: those that a refusal sends to ranks."""
    levels, recorder = [], _recorder()
    try:
        _set_recorder(None)
        while is_transformed():
            levels.append(_functorch.pop_dynamic_layer_stack())
        yield
    finally:
        _set_recorder(recorder)
        while levels:
            _functorch.push_dynamic_layer_stack(levels.pop())


def is_derived() -> bool:
    """Whether grad or vjp of torch.func, or what is made of them, is at work."""
    return any(level.key() == _GRAD for level in _functorch.get_interpreter_stack() or ())


def wants_gradient(q, k, v, sink=None, aux=None) -> bool:
    """Whether a derivative of one of them is to be recorded: such a call goes to an operator, which has one."""
    if not torch.is_grad_enabled():
        return False
    read = aux if isinstance(aux, (list, tuple)) else ()
    return any(isinstance(x, _Tensor) and x.requires_grad for x in (q, k, v, sink, *read))


def refuse_untraceable(function: str, arguments: dict) -> None:
    """Raise NotImplementedError, by name, for what an operator would drop or record wrongly."""
    if is_dynamo_compiling():
        return
    if _recorder() is not None:
        raise NotImplementedError(
            f"{function}: called inside of torch.jit.trace or torch.onnx.export(dynamo=False), which record torch's "
            "own operators and would keep only the allocation of out; accepted: torch.export.export, torch.compile"
        )
    refuse_tangents(arguments)


def refuse_tangents(arguments: dict) -> None:
    """Raise NotImplementedError for a tensor with a tangent: the result would have none."""
    if forward_ad._current_level < 0:
        return
    for name, value in arguments.items():
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(tensor, torch.Tensor) and _has_tangent(tensor):
                raise NotImplementedError(
                    f"{name}: has a tangent (torch.func.jvp, jacfwd, linearize or torch.autograd.forward_ad) and the "
                    f"derivative is not supported; pass {name}.detach(), or forward_ad.unpack_dual({name}).primal"
                )


def _has_tangent(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and forward_ad.unpack_dual(tensor).tangent is not None
