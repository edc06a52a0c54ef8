"""Output that nobody reads to its end: `python -m cute_fa4 aot list | head` ends quietly, as other commands do.

sys.exit(pipes.run(main))
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

CLOSED = 141  # 128 + SIGPIPE: what a shell says of a command whose reader went away


def run(main: Callable[[], int | None]) -> int:
    """Exit status of main(); CLOSED, without a traceback, if what it printed to was closed meanwhile."""
    try:
        status = main()
        sys.stdout.flush()  # else it is the interpreter that fails, at exit
    except BrokenPipeError:
        # Whatever is still buffered goes nowhere, so that the flush at exit does not fail, too.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        return CLOSED
    return status or 0
