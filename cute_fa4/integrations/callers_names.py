"""Calls of the public functions whose refusals use the argument names of the adapter's caller."""

from __future__ import annotations

from torch.compiler import is_dynamo_compiling

from cute_fa4.system.messages import named_as


def asked(function, names: dict, *args, **options):
    """function(*args, **options); errors use the caller's names. names: inner name -> caller's name."""
    if is_dynamo_compiling():  # Dynamo breaks the graph with the unchanged message
        return function(*args, **options)
    with named_as(names):
        return function(*args, **options)
