"""Commands whose reader closes the pipe early, as in `python -m cute_fa4 aot list | head`, end without a traceback.

sys.exit(pipes.run(main))
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

CLOSED = 141  # 128 + SIGPIPE: a shell's status of a command whose reader closed the pipe


def run(main: Callable[[], int | None]) -> int:
    """Exit status of main(); CLOSED, without a traceback, if its output was closed."""
    try:
        status = main()
        sys.stdout.flush()  # otherwise the interpreter fails at exit
    except BrokenPipeError:
        # Discard buffered output, so that the flush at exit does not fail.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        return CLOSED
    return status or 0
