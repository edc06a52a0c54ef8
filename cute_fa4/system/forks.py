"""What a forked child needs of its own: locks that are free, scratch directories that its exit does not remove.

    thread 1   with lock.held: emulates ...        child: the lock is held by a thread that it does not have,
    thread 2   os.fork()                                  so it gets a new one

What such a lock protects must be usable after a break at any line, as by Ctrl-C: the other thread's work ends there.
"""

import atexit
import os
import shutil
import tempfile
import threading
import weakref
from pathlib import Path


class Lock:
    """A threading.RLock that a forked child can take: ``with lock.held: ...``

    held  the lock of this process. Its enter and exit are C code, which an interrupt does not part

    A thread that forks while it holds the lock holds it in the child, too.
    """

    __slots__ = ("__weakref__", "held")

    def __init__(self):
        self.held = threading.RLock()
        _locks.add(self)


_locks = weakref.WeakSet()


def _renew():
    for lock in list(_locks):
        if not lock.held._is_owned():
            lock.held = threading.RLock()


os.register_at_fork(after_in_child=_renew)


class ScratchDirectory:
    """A temporary directory of this process, made when it is first asked for, removed at its exit."""

    def __init__(self, prefix):
        self._prefix, self._made, self._process = prefix, None, None

    def path(self) -> Path:
        """The directory; a forked child gets one of its own."""
        if self._process != os.getpid():
            made = Path(tempfile.mkdtemp(prefix=self._prefix))
            atexit.register(_remove, made, os.getpid())
            self._made, self._process = made, os.getpid()
        return self._made


def _remove(directory, process):
    if process == os.getpid():
        shutil.rmtree(directory, ignore_errors=True)
