"""Copies that a thread waits for in groups: bulk stores, and cp.async.

    thread:  store  store  commit_group | store  commit_group | wait_group 1     waits for the first group
             \\_____ group 1 _________/   \\____ group 2 ____/  wait_group.read 0  waits until both were read

PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy, async-group mechanism".
"""

from collections import defaultdict

from cute_fa4.emulator.instructions.instruction_table import instruction
from cute_fa4.emulator.machine.warp import Wait


class Copy:
    """A copy in flight: whether its source was read and its destination written; checks: CopyChecks or NoChecks."""

    __slots__ = ("checks", "read", "when_written", "written")

    def __init__(self, checks):
        self.checks = checks
        self.read = self.written = False
        self.when_written = []

    def finish(self):
        self.read = self.written = True
        for action in self.when_written:
            action()


class CopyGroups:
    """Copies of one thread: those of the open group, and the committed groups, oldest first.

    history  the committed groups that no wait has covered yet, whether they have finished or not
    known    number of them that a wait for their sources has covered
    """

    __slots__ = ("committed", "history", "known", "open")

    def __init__(self):
        self.open = []
        self.committed = []
        self.history = []
        self.known = 0

    def commit(self):
        self.committed.append(self.open)
        self.history.append(self.open)
        self.open = []

    def all_but(self, newest):
        """The copies of all committed groups but the newest ones. Forgets the oldest finished groups."""
        while self.committed and all(copy.written for copy in self.committed[0]):
            del self.committed[0]
        old = self.committed[: max(0, len(self.committed) - newest)]
        return [copy for group in old for copy in group]

    def waited(self, newest, only_read):
        """A wait for all but the newest groups has succeeded: the copies that it covers for the first time."""
        count = max(0, len(self.history) - newest)
        if only_read:
            covered = self.history[self.known : count]
            self.known = max(self.known, count)
        else:
            covered = self.history[:count]
            del self.history[:count]
            self.known = max(0, self.known - count)
        return [copy for group in covered for copy in group]


BULK = "cp.async.bulk"


def groups_of(kind, warp):
    """lane -> CopyGroups of a warp, for one kind of copy."""
    return warp.copy_groups.setdefault(kind, defaultdict(CopyGroups))


def wait_for_groups(kind, warp, newest, what, only_read=False):
    """Wait until all but the ``newest`` committed groups of every executing lane are read (and written)."""
    lanes = groups_of(kind, warp)
    copies = [copy for lane in warp.lanes for copy in lanes[lane].all_but(newest)]

    def ready():
        return all(copy.read if only_read else copy.written for copy in copies)

    if not ready():
        return Wait(ready, what)
    for lane in warp.lanes:
        for copy in lanes[lane].waited(newest, only_read):
            copy.checks.waited_by(warp, only_read)
    return None


@instruction("cp.async.bulk.commit_group")
def bulk_commit_group(warp, ins):
    """The bulk stores that this thread issued since the last commit become a group."""
    for lane in warp.lanes:
        groups_of(BULK, warp)[lane].commit()


@instruction(pattern=r"cp\.async\.bulk\.wait_group(\.read)?")
def bulk_wait_group(warp, ins, match):
    """Wait until at most N of this thread's newest bulk groups are pending; with .read: unread."""
    newest = ins.operands[0].value
    what = f"{ins.opcode} {newest}"
    return wait_for_groups(BULK, warp, newest, what, bool(match.group(1)))
