"""Runs the warps of a cluster to completion, and reports a deadlock.

    schedules.py                        which warp or asynchronous completion goes next
    run_slice                           one warp, until its groups wait or its turn ends
    nothing can run or complete     ->  try_waits time out together; if two rounds of that change
                                        nothing: Deadlock, with the waits of all warps

Inside a warp the group of lanes with the smallest program counter runs first, so that lanes reconverge after a
branch.
"""

from cute_fa4.emulator.checks import registers
from cute_fa4.emulator.machine.deadlock import deadlock_report
from cute_fa4.emulator.machine.warp import FULL, Group, converge
from cute_fa4.emulator.ptx.errors import Deadlock, DivergenceError, EmulatorError
from cute_fa4.emulator.run.program import BRANCH, CALL, EXIT, RUN, table_targets
from cute_fa4.emulator.run.schedules import MODES, schedule_of

__all__ = ["MODES", "Scheduler"]

SLICE = 20_000
"""Instructions that a warp may execute before the others get a turn: far more than real kernels
execute between two waits, so that only polling loops are interrupted."""

STALL_LIMIT = 3_000_000
"""Instructions without any store, arrival, copy or exit in the whole cluster that count as an endless
loop: more than any kernel computes in registers only, and a few seconds of emulation."""

SPIN_LIMIT, SPINNING_WARPS = 2_000, 32
"""The same limit per warp, for at most this many warps, if all warps that can run only poll memory: hundreds of
polls, which take seconds if many warps make them and every poll is checked."""

_NEVER = 1 << 60


class Scheduler:
    """Runs the warps of a cluster, and of those that join it, to completion.

    budget  warp instructions that the launch may execute, None for no limit
    """

    def __init__(self, machine, program, mode="in_order", seed=0, budget=None):
        self.machine = machine
        self.program = program
        self.schedule = schedule_of(mode, seed, self)
        self.budget = budget
        self.executions_of = {}  # role -> executions of every step by its warps
        self.instructions = 0
        self._progress_seen = None
        self._stall_start = 0
        self._why_no_more = lambda: ""

    def run(self, warps, more=lambda: (), why_no_more=lambda: ""):
        """Execute until every lane of every warp has exited. Raises Deadlock, or the error of the kernel.

        more         () -> warps of another cluster that fits on the chip; empty: there is none
        why_no_more  () -> a note on clusters that have not started, for reports
        """
        live = self._counted(warps)
        self._why_no_more = why_no_more
        quiet_rounds, last_progress = 0, None
        while live:
            if self.schedule.turn(live):
                live = self._retire(live)
                self._check_stall(live)
                continue
            # Nothing can progress. Time out all waits that may time out; if that has changed nothing twice, it
            # never will.
            if any(g.wait is not None and g.wait.polls for w in live for g in w.groups):
                if self._joined(live, more):
                    continue
                self.machine.polls_freely, quiet_rounds = True, 0
            progress = self.progress()
            quiet_rounds = quiet_rounds + 1 if progress == last_progress else 0
            last_progress = progress
            waits = [
                g.wait
                for w in live
                for g in w.groups
                if g.wait is not None and g.wait.timeout is not None
            ]
            if not waits or quiet_rounds >= 2:
                raise self._deadlock(live)
            for wait in waits:
                wait.timed_out = True

    def _joined(self, live, more):
        """Whether another cluster has joined, or a running one polls again because no other will join."""
        machine = self.machine
        joining, waited = self._counted(more()), machine.others_join
        live += joining
        machine.joined += bool(joining)
        machine.others_join = bool(joining)
        return joining or (waited and any(warp.runnable() for warp in live))

    def _counted(self, warps):
        """Warps with work; their executions are counted by role."""
        for warp in warps:
            name = warp.role or f"warp {warp.index}"
            counts = self.executions_of.get(name)
            if counts is None:
                counts = self.executions_of[name] = [0] * len(self.program.steps)
            warp.executions = counts
        return [warp for warp in warps if not warp.done]

    @property
    def executions(self):
        """Execution counts of every step, by all warps."""
        return [sum(counts) for counts in zip(*self.executions_of.values(), strict=True)] or [
            0
        ] * len(self.program.steps)

    def _retire(self, live):
        """Drop finished warps; check a CTA when its last one has finished."""
        if not any(warp.done for warp in live):
            return live
        left = [warp for warp in live if not warp.done]
        for cta in {id(w.cta): w.cta for w in live if w.done}.values():
            if not cta.finished and all(w.done for w in cta.warps):
                cta.finish()
        return left

    # -- end of the road ---------------------------------------------------------------------------------------

    def progress(self):
        """Changes with everything that another warp may wait for."""
        return self.machine.state()

    def _check_stall(self, live):
        if self.budget is not None and self.instructions > self.budget:
            raise self._deadlock(
                live, f"the instruction budget of {self.budget:,} warp instructions is used up"
            )
        progress = self.progress()
        if progress != self._progress_seen:
            self._progress_seen = progress
            self._stall_start = self.instructions
            self.machine.polls_freely = False
            return
        spent = self.instructions - self._stall_start
        if self.machine.polls_freely and spent > SPIN_LIMIT * min(len(live), SPINNING_WARPS):
            raise self._deadlock(live, "every warp that can run spins, and nothing changes")
        if spent > STALL_LIMIT:
            raise self._deadlock(
                live,
                f"probably an endless loop: {spent:,} warp instructions without a store, an arrival or a copy by "
                "anybody",
            )

    def _deadlock(self, live, reason=None):
        text, diverged = deadlock_report(live, self.program, self.instructions, reason)
        more = self._why_no_more()
        text += f"\n{more}" if more else ""
        return (DivergenceError if diverged else Deadlock)(text)

    # -- one warp --------------------------------------------------------------------------------------------------

    def run_slice(self, warp, limit=SLICE):
        """Execute about ``limit`` instructions of a warp, or until all its groups wait or have exited."""
        executed = 0
        self.machine.cluster = warp.cta.cluster
        warp.yield_slice = False
        try:
            while executed < limit and warp.groups:
                if len(warp.groups) == 1:
                    group, stop = warp.groups[0], _NEVER
                    wait = group.wait
                    if wait is not None and not _over(wait, group, warp):
                        break
                else:
                    group, stop = self._select(warp)
                    if group is None:
                        break
                n = self._run_group(warp, group, stop, limit - executed)
                executed += n
                if warp.yield_slice:
                    break
        except EmulatorError as error:
            error.warp = warp
            if "PTX line" in str(error) or warp.ins is None:
                raise
            located = warp.located(error)
            located.warp = warp
            raise located from error
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            message = (
                f"the emulator itself failed on this instruction: {type(error).__name__}: {error}"
            )
            raise warp.located(EmulatorError(message)) from error
        finally:
            warp.instructions += executed
            self.instructions += executed
        if executed >= limit and len(warp.groups) > 1:
            # A group that polls at a small pc must not block the others of its warp.
            warp.groups.append(warp.groups.pop(0))
            warp.rotate = True

    def _select(self, warp):
        """(group to run, pc at which to stop and check again) or (None, 0); merges groups that have met."""
        by_pc, blocked = {}, []
        for group in warp.groups:
            wait = group.wait
            if wait is not None and not wait.required:
                if not _over(wait, group, warp):
                    blocked.append(group)
                    continue
                # A completed wait ends for its own lanes: no merging before the instruction is done.
                by_pc.setdefault((group.pc, id(group)), group)
                continue
            # Lanes at the same instruction, waiting for each other or about to execute it, continue together.
            met = by_pc.get((group.pc, 0))
            if met is None:
                by_pc[group.pc, 0] = group
            else:
                met.mask |= group.mask
                met.wait = met.wait or wait
        groups = sorted(by_pc.values(), key=lambda g: g.pc)
        ready = [g for g in groups if g.wait is None or _over(g.wait, g, warp)]
        if len(groups) + len(blocked) != len(warp.groups):
            warp.groups[:] = groups + blocked
        if not ready:
            return None, 0
        chosen = ready[-1] if warp.rotate else ready[0]
        warp.rotate = False
        others = [g.pc for g in groups if g is not chosen and g.pc > chosen.pc]
        return chosen, min(others, default=_NEVER)

    def _run_group(self, warp, group, stop, limit):
        """Execute one group from its pc. Returns the number of instructions; updates the warp's groups."""
        steps, executions = self.program.steps, warp.executions
        P, R_pointer, P_pointer = warp.P_view, warp.R_pointer, warp.P_pointer
        observer = self.machine.observer
        pc, mask = group.pc, group.mask
        warp.resumed, group.wait = group.wait, None
        executed = 0
        try:
            while True:
                step = steps[pc]
                executions[pc] += 1
                kind = step[0]
                if kind == RUN:
                    if warp.pending_rows:
                        registers.check(warp, self.program, pc)
                    step[1].execute(R_pointer, P_pointer, mask)
                    executed += step[2]
                    pc += 1
                elif kind == BRANCH:
                    executed += 1
                    predicate = step[1]
                    if predicate < 0:
                        pc = step[3]
                    else:
                        bits = P[predicate]
                        taken = (mask & ~bits) if step[2] else (mask & bits)
                        if taken == mask:
                            pc = step[3]
                        elif not taken:
                            pc += 1
                        else:
                            group.mask, group.pc = mask & ~taken, pc + 1
                            warp.groups.append(Group(step[3], taken))
                            return executed
                elif kind == CALL:
                    executed += 1
                    _, function, ins, predicate, negated, aligned = step
                    active = mask
                    if predicate >= 0:
                        active &= ~P[predicate] if negated else P[predicate]
                    if active:
                        warp.ins = ins
                        if aligned and active != warp.live:
                            if not self._converge(warp, group, pc, mask, active):
                                return executed
                        warp.mask = active
                        if warp.pending_rows:
                            registers.check(warp, self.program, pc)
                        if observer is not None:
                            if warp.resumed is None:
                                observer.instruction(warp, ins)
                            else:
                                observer.resume(warp, warp.resumed)
                        wait = function(warp, ins)
                        warp.resumed = None
                        if wait is not None:
                            wait.mask, wait.ins = active, ins
                            group.wait, group.pc = wait, pc
                            if observer is not None:
                                observer.wait(warp, wait)
                            return executed
                        if warp.yield_slice:
                            group.pc = pc + 1
                            return executed
                    pc += 1
                elif kind == EXIT:
                    executed += 1
                    leaving = mask
                    if step[1] >= 0:
                        leaving &= ~P[step[1]] if step[2] else P[step[1]]
                    if leaving:
                        warp.exit_lanes(leaving)
                        mask &= ~leaving
                        if not mask:
                            warp.groups.remove(group)
                            return executed
                        group.mask = mask
                    pc += 1
                else:
                    executed += 1
                    warp.ins = step[1]
                    warp.mask = mask
                    first = True
                    for target, lanes in table_targets(warp, step[1], step[2], mask):
                        if first:
                            group.pc, group.mask, first = target, lanes, False
                        else:
                            warp.groups.append(Group(target, lanes))
                    return executed
                if pc >= stop or executed >= limit:
                    group.pc = pc
                    return executed
        finally:
            warp.resumed = None

    def _converge(self, warp, group, pc, mask, active):
        """An .aligned instruction reached by some of the live lanes: park them until the others arrive."""
        if warp.live & ~mask == 0:
            warp.mask = active
            warp.fault(
                f"this instruction is .aligned: all live lanes must execute it, but its guard is false in "
                f"lanes {_lane_text(warp.live & ~active)}",
                DivergenceError,
            )
        wait = converge(FULL, f"lanes {_lane_text(warp.live & ~mask)} to arrive (.aligned)")
        wait.mask, wait.ins = mask, warp.ins
        group.wait, group.pc = wait, pc
        return False


def _over(wait, group, warp):
    if wait.required:
        return wait.required & warp.live & ~group.mask == 0
    return wait.timed_out or wait.ready()


def _lane_text(mask):
    """0x0000fff0 -> "4-11"."""
    parts, lane = [], 0
    while mask >> lane:
        if mask >> lane & 1:
            end = lane
            while mask >> (end + 1) & 1:
                end += 1
            parts.append(str(lane) if end == lane else f"{lane}-{end}")
            lane = end
        lane += 1
    return ", ".join(parts)
