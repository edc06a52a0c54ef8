"""Locks and scratch directories that work across fork: a child gets unlocked locks and its own directories.

    thread 1   with lock.held: emulates ...        child: the lock is held by a thread that it does not have,
    thread 2   os.fork()                                  so it gets a new one

The data that such a lock protects must stay usable after an interrupt at any line (Ctrl-C): in the child, the other
thread's work ends there.

A killed process leaves its scratch directories behind. A process therefore locks a file in each of its directories,
which the system unlocks when the process ends. A process that creates a directory removes those without a lock:

    /tmp/cute_fa4-emulator-x7k2/.in-use      locked by this process
    /tmp/cute_fa4-emulator-p4q9/.in-use      not locked: left by a killed process, removed with its directory
"""

import atexit
import contextlib
import os
import shutil
import tempfile
import threading
import time
import weakref
from pathlib import Path

try:
    import fcntl
except ImportError:  # not a POSIX system: no lock ends with its process, so old directories stay
    fcntl = None  # type: ignore[assignment]  # its users ask whether it is None


class Lock:
    """A threading.RLock that a forked child can take: ``with lock.held: ...``

    held  the lock of this process. Its enter and exit are C code, which an interrupt cannot split

    A thread that forks while it holds the lock also holds it in the child.
    """

    __slots__ = ("__weakref__", "held")

    def __init__(self):
        self.held = threading.RLock()
        _locks.add(self)


_locks: weakref.WeakSet[Lock] = weakref.WeakSet()


def _renew():
    for lock in list(_locks):
        if not lock.held._is_owned():
            lock.held = threading.RLock()


os.register_at_fork(after_in_child=_renew)


IN_USE = ".in-use"
_BEING_MADE_SECONDS = 60  # a younger file may be about to be locked


class ScratchDirectory:
    """A temporary directory of this process, created at first use, removed at exit."""

    def __init__(self, prefix):
        self._prefix, self._made, self._process, self._lock = prefix, None, None, None

    def path(self) -> Path:
        """The directory. A forked child gets a new one, and so does a process whose directory was deleted."""
        if self._process != os.getpid() or not self._made.is_dir():
            remove_left_after(self._prefix)
            made = Path(tempfile.mkdtemp(prefix=self._prefix))
            self._lock = _lock(made / IN_USE)
            atexit.register(_remove, made, os.getpid())
            self._made, self._process = made, os.getpid()
        return self._made


def remove_left_after(prefix: str) -> None:
    """Remove this user's scratch directories that ended processes left behind."""
    if fcntl is None:
        return
    for directory in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(
            OSError
        ):  # it does not exist, belongs to another user, or is in use
            status = (directory / IN_USE).lstat()
            ours = status.st_uid == os.getuid() and directory.lstat().st_uid == os.getuid()
            if ours and time.time() - status.st_mtime > _BEING_MADE_SECONDS:
                handle = _lock(directory / IN_USE)
                shutil.rmtree(directory, ignore_errors=True)
                if handle is not None:
                    os.close(handle)


def _lock(path: Path) -> int | None:
    """A file, locked while it is open here or in a forked child; BlockingIOError if another process holds it."""
    if fcntl is None:
        return None
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise
    return handle


def _remove(directory, process):
    if process == os.getpid():
        shutil.rmtree(directory, ignore_errors=True)
