"""What a forked child needs of its own: locks that are free, scratch directories that its exit does not remove.

    thread 1   with lock: emulates ...             child: the lock is held by a thread that it does not have,
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
    """threading.Lock, or threading.RLock, that a forked child can take. A context manager.

    A thread that forks while it holds the lock holds it in the child, too.
    """

    __slots__ = ("__weakref__", "_lock", "_make", "_owner")

    def __init__(self, reentrant=False):
        self._make = threading.RLock if reentrant else threading.Lock
        self._lock, self._owner = self._make(), None
        _locks.add(self)

    def __enter__(self):
        self._lock.acquire()
        self._owner = threading.get_ident()

    def __exit__(self, *error):
        self._lock.release()


_locks = weakref.WeakSet()


def _renew():
    for lock in list(_locks):
        if lock._owner != threading.get_ident():
            lock._lock = lock._make()


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
