"""Definition of a standalone operator: schema, implementations on CPU and CUDA, and its rules for torch."""

from __future__ import annotations

from collections.abc import Callable

import torch


def arguments_of(operator) -> Callable[[tuple, dict], dict]:
    """f(args, kwargs) -> arguments of a call by name; the dispatcher leaves out those with their default."""
    arguments = operator._schema.arguments
    names = [a.name for a in arguments]
    defaults = {a.name: a.default_value for a in arguments if a.has_default_value()}

    def named(args: tuple, kwargs: dict) -> dict:
        # by position: Dynamo of PyTorch 2.8 cannot trace zip(strict=False)
        return {**defaults, **{names[at]: arg for at, arg in enumerate(args)}, **kwargs}

    return named


def defined(
    schema: str,
    tags: tuple,
    run: Callable,
    below_autograd: Callable,
    fake: Callable,
    batched: Callable | None = None,
) -> torch.library.Library:
    """The library that holds the operator of a schema, which exists as long as its library does.

    run              on CPU and CUDA tensors
    below_autograd   below_autograd(keyset, ...), with the arguments of the operator
    fake, batched    without data, and under torch.vmap; None: no rule
    """
    name = schema.partition("(")[0]
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
