"""Preallocated frames of Python functions, for code that makes millions of calls.

CPython 3.11 and later keep frames in chunks of 16 KB, which hold some tens of calls. A call that does not fit maps
a new chunk, and its return unmaps it. A loop at such a depth maps and unmaps a chunk in every iteration: 50,000
times while one kernel is traced, a quarter of the time of its compile.

    chunk 1 | main | compile | trace | ... | add |        chunk 2 | wrapped | add |
                                             ^ calls a million times        ^ mapped a million times
"""

from __future__ import annotations

import functools

_SLOT_BYTES = 8
_CHUNK_BYTES = 1 << 21
# A frame of more than half a chunk makes CPython map one of this size, whose remainder, about a megabyte, serves
# the frames after it. The frame's own part is never written: it takes address space, not memory.
_STACK_SLOTS = _CHUNK_BYTES // 2 // _SLOT_BYTES


def with_room(function):
    """Decorator: calls made by `function` share a megabyte of frames, some thousand calls deep."""

    def call(*args, **kwargs):
        return function(*args, **kwargs)

    call.__code__ = call.__code__.replace(co_stacksize=_STACK_SLOTS)
    return functools.wraps(function)(call)
