"""Progress bars for work that may take longer than two seconds, only on a terminal.

    with progress.bar(len(configs), "compiling", "kernel") as step:
        for config in configs:
            compile(config)
            step()
            progress.say(config.name)      # print without breaking the bar

No bar appears in the first DELAY_SECONDS, if stderr is not a terminal (a log, a pipe, a test), or without tqdm. A
bar is erased when its work is done. It never writes to stdout.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

DELAY_SECONDS = 2.0

_bars: list = []  # started bars, drawn or not


@contextlib.contextmanager
def bar(total: int, what: str, unit: str) -> Iterator[Callable[[], object]]:
    """Yields a function to call after each of the `total` steps."""
    tqdm = _tqdm()
    if tqdm is None:
        yield lambda: None
        return
    options = {"delay": DELAY_SECONDS, "leave": False, "dynamic_ncols": True, "file": sys.stderr}
    with tqdm(total=total, desc=what, unit=f" {unit}", **options) as shown:
        outside = list(_bars)
        try:
            _bars.append(shown)
            yield shown.update
        finally:
            _bars[:] = outside


def say(text: str) -> None:
    """print(text); a visible bar is redrawn below it."""
    if any(shown.last_print_t > shown.start_t for shown in _bars):
        _bars[0].write(text, file=sys.stdout)
    else:
        print(text, flush=True)


def _tqdm():
    """tqdm's class, or None if no bar should be drawn."""
    if sys.stderr is None or not sys.stderr.isatty():
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm
