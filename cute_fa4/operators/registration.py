"""Definition of a standalone operator: schema, implementations on CPU and CUDA, and its rules for torch."""

from __future__ import annotations

from collections.abc import Callable

import torch


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
