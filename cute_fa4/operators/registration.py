"""Definition of a standalone operator: schema, implementations on CPU and CUDA, and its rules for torch."""

from __future__ import annotations

from collections.abc import Callable

import torch

from cute_fa4.calls.operands.tensors import check_no_gradient
from cute_fa4.calls.operands.tracing import refuse_tangents
from cute_fa4.operators import sharding
from cute_fa4.operators.refusals import in_graph


def arguments_of(operator) -> Callable[[tuple, dict], dict]:
    """f(args, kwargs) -> arguments of a call by name; the dispatcher leaves out those with their default."""
    arguments = operator._schema.arguments
    names = [a.name for a in arguments]
    defaults = {a.name: a.default_value for a in arguments if a.has_default_value()}

    def named(args: tuple, kwargs: dict) -> dict:
        # by position: Dynamo of PyTorch 2.8 cannot trace zip(strict=False)
        return {**defaults, **{names[at]: arg for at, arg in enumerate(args)}, **kwargs}

    return named


def plain(value):
    """A parameter is a tensor for an implementation; what is no tensor stays."""
    wraps = isinstance(value, torch.Tensor) and type(value) is not torch.Tensor
    return value.as_subclass(torch.Tensor) if wraps else value


def after_autograd(operator, keyset, args: tuple, kwargs: dict):
    """The results of an operator from what torch runs after autograd: DTensor's rule, vmap's, or the implementation."""
    sharding.register_rules()
    with torch._C._AutoDispatchBelowAutograd():
        return operator.redispatch(keyset & torch._C._after_autograd_keyset, *args, **kwargs)


def without_derivative(name: str) -> Callable:
    """The rule under autograd of an operator that has no derivative: it is refused, where zeros would be returned."""

    def below_autograd(keyset, *args, **kwargs):
        operator = getattr(torch.ops.cute_fa4, name).default
        given = arguments_of(operator)(args, kwargs)
        tensors = {n: x for n, x in given.items() if isinstance(x, torch.Tensor)}
        in_graph(check_no_gradient, tensors=tensors)
        refuse_tangents(tensors)
        return after_autograd(operator, keyset, args, kwargs)

    return below_autograd


def defined(
    schema: str,
    tags: tuple,
    run: Callable,
    fake: Callable,
    *,
    batched: Callable | None = None,
    below_autograd: Callable | None = None,
) -> torch.library.Library:
    """The library that holds the operator of a schema, which exists as long as its library does.

    run              on CPU and CUDA tensors
    fake, batched    without data, and under torch.vmap; None: no rule
    below_autograd   below_autograd(keyset, ...), with the arguments of the operator; None: it has no derivative
    """
    name = schema.partition("(")[0]
    below_autograd = below_autograd or without_derivative(name)
    library = torch.library.Library("cute_fa4", "FRAGMENT")
    try:
        library.define(schema, tags=tags)
        library.impl(name, run, "CPU")
        library.impl(name, run, "CUDA")
        library.impl(name, below_autograd, "Autograd", with_keyset=True)
        torch.library.register_fake(f"cute_fa4::{name}", fake, lib=library)
        if batched is not None:
            torch.library.register_vmap(f"cute_fa4::{name}", batched, lib=library)
        return library
    except BaseException:
        library._destroy()  # Ctrl-C: the next import could not define it again
        raise
