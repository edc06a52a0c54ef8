"""Room for the frames of Python functions, where millions of calls are about to be made.

CPython 3.11 and later keep frames in chunks of 16 KB, some tens of calls deep. The call that does not fit any more maps
a chunk, and its return gives it back to the system. A loop at such a depth maps and unmaps one in every iteration:
50,000 times while one kernel is traced, a quarter of the time of its compile.

    chunk 1 | main | compile | trace | ... | add |        chunk 2 | wrapped | add |
                                             ^ calls a million times        ^ mapped a million times
"""

from __future__ import annotations

import functools

_SLOT_BYTES = 8
_CHUNK_BYTES = 1 << 21
# A frame of more than half of a chunk makes CPython map one of this size, of which it leaves the rest, about a
# megabyte, to the frames behind it. Nothing is written to the frame's own part: it takes addresses, not memory.
_STACK_SLOTS = _CHUNK_BYTES // 2 // _SLOT_BYTES


def with_room(function):
    """Decorator: what `function` calls has a megabyte of frames before a chunk ends, some thousand calls deep."""

    def call(*args, **kwargs):
        return function(*args, **kwargs)

    call.__code__ = call.__code__.replace(co_stacksize=_STACK_SLOTS)
    return functools.wraps(function)(call)
