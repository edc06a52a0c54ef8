"""What a forked child needs of its own: locks that are free, scratch directories that its exit does not remove.

    thread 1   with lock.held: emulates ...        child: the lock is held by a thread that it does not have,
    thread 2   os.fork()                                  so it gets a new one

What such a lock protects must be usable after a break at any line, as by Ctrl-C: the other thread's work ends there.

A process that is killed leaves its scratch directories behind. So a process locks a file in each of its own, which the
system unlocks however it ends, and one that makes a directory removes those that nobody locks:

    /tmp/cute_fa4-emulator-x7k2/.in-use      locked by this process
    /tmp/cute_fa4-emulator-p4q9/.in-use      locked by nobody: of a process that was killed, goes with its directory
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
except ImportError:  # not a POSIX system: no lock that ends with its process, so what is left stays
    fcntl = None


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


IN_USE = ".in-use"
_BEING_MADE_SECONDS = 60  # a file this young may be about to be locked


class ScratchDirectory:
    """A temporary directory of this process, made when it is first asked for, removed at its exit."""

    def __init__(self, prefix):
        self._prefix, self._made, self._process, self._lock = prefix, None, None, None

    def path(self) -> Path:
        """The directory; a forked child gets one of its own, and anyone whose directory a cleaner of /tmp removed."""
        if self._process != os.getpid() or not self._made.is_dir():
            remove_left_behind(self._prefix)
            made = Path(tempfile.mkdtemp(prefix=self._prefix))
            self._lock = _lock(made / IN_USE)
            atexit.register(_remove, made, os.getpid())
            self._made, self._process = made, os.getpid()
        return self._made


def remove_left_behind(prefix: str) -> None:
    """Remove this user's scratch directories that a process which is no more did not remove."""
    if fcntl is None:
        return
    for directory in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # there is none, it is somebody else's, or it is in use
            status = (directory / IN_USE).lstat()
            ours = status.st_uid == os.getuid() and directory.lstat().st_uid == os.getuid()
            if ours and time.time() - status.st_mtime > _BEING_MADE_SECONDS:
                handle = _lock(directory / IN_USE)
                shutil.rmtree(directory, ignore_errors=True)
                os.close(handle)


def _lock(path: Path) -> int | None:
    """A file, locked as long as it is open here or in a forked child; BlockingIOError if another process has it."""
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
