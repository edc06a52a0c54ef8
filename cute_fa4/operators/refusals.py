"""Refusals while torch.compile traces: the package's message comes first in any report.

Dynamo wraps an exception of traced code in its own paragraphs, and shows the original at their end. Its own
Unsupported passes through unchanged: with fullgraph=True that is the error, otherwise the graph ends before the call,
which is then made without a tracer and raises TypeError, ValueError or NotImplementedError itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

REFUSALS = (TypeError, ValueError, NotImplementedError)


def in_graph(check: Callable, **arguments) -> None:
    """check(**arguments) for tensors without data; a refusal is reported to Dynamo if Dynamo is tracing."""
    try:
        check(**arguments)
    except REFUSALS as error:
        dynamo = sys.modules.get("torch._dynamo.utils")  # importing it takes a second
        if dynamo is None or dynamo.get_current_node() is None:
            raise
        tell_dynamo(str(error))
        raise


def tell_dynamo(text: str) -> None:
    """End the graph, or refuse it, with this text. No-op unless Dynamo traces: the caller then raises its own."""
    from torch._dynamo.exc import Unsupported
    from torch._guards import TracingContext

    if TracingContext.try_get() is not None:
        raise Unsupported(text)
