"""The modes of the scheduler: which warp or asynchronous completion comes next.

    mode        warps                                   completions
    in_order    round-robin, each until it blocks       all of them after every turn, oldest first
    together    round-robin, a few instructions each    the same: no warp gets far ahead, as on hardware
    random      a random warp, a random stretch         any possible one at any time
    hostile     see below                               one at a time, any of the possible ones, and late

hostile consists of episodes of a random number of turns. An episode has a victim, the warps of one role (one warp
in turn if roles have no names), and in a cluster a favorite CTA. Work is tried in this order; the next entry only
runs if everything before it waits or only polls:

    warps of the favourite, without the victim     that CTA runs as far ahead as its barriers allow
    completions of the favourite's operations      (clusters, in half of the episodes)
    the other CTAs, without the victim
    the victim                                     (in half of the episodes after the completions: slower
    one completion                                 than any copy)

In random and hostile, some try_waits time out immediately: PTX leaves the time limit to the system.

Requests to cancel a cluster that has not started (instructions/cluster_launch_control.py) are granted as follows. A
refusal while clusters are left represents clusters that run elsewhere; they run later here:

    in_order    always, the next cluster in launch order      one CTA runs the whole grid; together: the same
    random      3 in 4, the next one
    hostile     3 in 4, any one

The same seed gives the same order of everything.
"""

import random

MODES = ("in_order", "together", "random", "hostile")
SEEDED = MODES[2:]

EPISODE = (4, 40)
"""Turns of an episode: up to several tiles of a kernel's main loop, so that every role is the victim
at the start, in the middle and at the end of a run of usual length."""

STRETCHES = (1, 8, 64, 512)
"""Instructions that "random" gives a warp: from a single one to more than there are between two waits."""


TOGETHER = 32
"""Instructions that "together" gives a warp: fewer than there are between most pairs of barriers, so that the work of
two warps between the same barriers overlaps; a published kernel whose race hardware hides is right with up to 60."""

GIVE_UP = 0.25
"""Probability that a try_wait that would block returns false immediately ("random", "hostile"): high enough that a
kernel that ignores the result fails within a few waits, low enough that loops around it stay cheap."""

REFUSAL = 0.25
"""Probability that a request for a cluster is refused while some are left ("random", "hostile"): a grid of ten
clusters is then run by a few CTAs, each of them with several."""


def schedule_of(mode, seed, scheduler):
    """The schedule of a mode. Raises ValueError for an unknown one."""
    if mode not in MODES:
        raise ValueError(f"mode {mode!r} is not known; accepted are {', '.join(MODES)}")
    classes = {"in_order": InOrder, "together": Together, "random": Random, "hostile": Hostile}
    return classes[mode](seed, scheduler)


class InOrder:
    """Warps in turn; operations complete as soon as a warp has stopped."""

    stretch: int | None = None  # instructions of a turn, None: until the warp blocks

    def __init__(self, seed, scheduler):
        self.scheduler = scheduler

    def turn(self, live):
        """Let something run. False when nothing could."""
        engine, ran = self.scheduler.machine.engine, False
        for warp in live:
            if warp.runnable():
                ran = True
                if self.stretch is None:
                    self.scheduler.run_slice(warp)
                else:
                    self.scheduler.run_slice(warp, self.stretch)
                if engine.pending:
                    engine.drain()
        if not ran and engine.pending:
            engine.complete_oldest()
            return True
        return ran

    def refuses_cluster(self):
        """Is a request for a cluster refused although some are left?"""
        return False

    def pick_cluster(self, count):
        """The cluster that a request gets, from those left in launch order."""
        return 0


class Together(InOrder):
    """Short turns."""

    stretch = TOGETHER


class Random(InOrder):
    """Everything that can happen is equally likely to happen next."""

    def __init__(self, seed, scheduler):
        super().__init__(seed, scheduler)
        self.random = random.Random(seed)
        scheduler.machine.gives_up = lambda: self.random.random() < GIVE_UP

    def turn(self, live):
        engine = self.scheduler.machine.engine
        runnable = [warp for warp in live if warp.runnable()]
        heads = engine.heads() if engine.pending else ()
        if not runnable and not heads:
            return False
        choice = self.random.randrange(len(runnable) + len(heads))
        if choice < len(runnable):
            self.scheduler.run_slice(runnable[choice], self.random.choice(STRETCHES))
        else:
            engine.complete(heads[choice - len(runnable)])
        return True

    def refuses_cluster(self):
        return self.random.random() < REFUSAL


class Hostile(Random):
    """Completions late and out of order, one role starved, one CTA of a cluster ahead."""

    def __init__(self, seed, scheduler):
        super().__init__(seed, scheduler)
        self._turns = 0
        self._victim = self._favourite = None
        self._victim_last = self._own_completions = False

    def turn(self, live):
        if self._turns == 0:
            self._new_episode(live)
        self._turns -= 1
        for step in self._steps(live):
            before = self.scheduler.progress()
            step()
            if self.scheduler.progress() != before:
                return True
        # Only polls, or nothing at all: the caller decides how to continue.
        return any(warp.runnable() for warp in live)

    def pick_cluster(self, count):
        return self.random.randrange(count)

    def _steps(self, live):
        """The attempts of one turn, in order: functions that let something run."""
        first = [w for w in live if not self._is_victim(w) and self._is_favourite(w)]
        other = [w for w in live if not self._is_victim(w) and not self._is_favourite(w)]
        victim = [w for w in live if self._is_victim(w)]
        yield lambda: self._run(first)
        if self._favourite is not None and self._own_completions:
            yield lambda: self._complete(self._favourite)
        yield lambda: self._run(other)
        if self._victim_last:
            yield self._complete
            yield lambda: self._run(victim)
        else:
            yield lambda: self._run(victim)
            yield self._complete

    def _run(self, warps):
        runnable = [warp for warp in warps if warp.runnable()]
        self.random.shuffle(runnable)
        for warp in runnable:
            self.scheduler.run_slice(warp)

    def _complete(self, rank=None):
        engine = self.scheduler.machine.engine
        heads = engine.heads() if engine.pending else ()
        if rank is not None:
            heads = [op for op in heads if op.cta is not None and op.cta.rank == rank]
        if heads:
            engine.complete(self.random.choice(heads))

    def _new_episode(self, live):
        choice = self.random.choice
        self._turns = self.random.randint(*EPISODE)
        self._victim = choice(sorted({_role(warp) for warp in live}))
        ranks = sorted({warp.cta.rank for warp in live})
        self._favourite = choice(ranks) if len(ranks) > 1 else None
        self._victim_last, self._own_completions = choice((False, True)), choice((False, True))

    def _is_victim(self, warp):
        return _role(warp) == self._victim

    def _is_favourite(self, warp):
        return self._favourite is None or warp.cta.rank == self._favourite


def _role(warp):
    return warp.role or f"warp {warp.index}"
