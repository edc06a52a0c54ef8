"""Cycles of one cluster: its warps follow their paths through the machine code on modeled SMs.

An SM has four sub-partitions; warp w lives on number w % 4. A scheduler issues one instruction a
cycle, for the warp that has waited longest among those that can issue. A warp can issue when

    its last instruction's stall count is over
    the scoreboards of the wait mask are free
    the instruction's pipe takes another one

Barriers, tensor core and copies are the engines of engines.py. A wait (SYNCS.PHASECHK) sets its
scoreboard when the barrier's phase is complete, so the warp stops where it needs the answer.

The result does not depend on wall clock, hash seeds or addresses: same paths, same cycles.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict

from cute_fa4.emulator.model.align import Path
from cute_fa4.emulator.model.constants import (
    SEND_RATE,
    SUB_PARTITIONS,
    Constant,
    operand_bytes,
    umma_interval,
)
from cute_fa4.emulator.model.control_codes import ControlCode
from cute_fa4.emulator.model.engines import Barrier, CopyEngine, NamedBarrier, TensorQueue
from cute_fa4.emulator.model.pipes import Pipes, result_name
from cute_fa4.emulator.model.result import Result
from cute_fa4.emulator.model.starts import FirstCopies
from cute_fa4.emulator.model.trace import Event, Trace
from cute_fa4.emulator.model.wgmma import WgmmaQueue

_NEVER = float("inf")
_WHOLE_SM = ("shared",)
_PIPES = ("fma", "alu", "convert", "mufu", "uniform", "tmem", "shared")


class _Warp:
    __slots__ = (
        "name", "program", "pc", "scoreboards", "partition", "cta", "parked", "last", "waits",
        "marks", "blocked", "why", "groups", "wgmmas", "path",
    )  # fmt: skip

    def __init__(self, name, path, program, partition):
        self.name, self.path = name, path
        self.cta = name[0]
        self.program = program
        self.partition = partition
        self.pc = 0
        self.scoreboards = [0.0] * 6
        self.parked = False
        self.last = -1.0
        self.waits = []
        self.marks = []
        self.blocked = None
        self.why = [None] * 6
        self.groups = []
        self.wgmmas = 0


class Machine:
    """One cluster on as many SMs as it has CTAs."""

    def __init__(self, constants: dict[str, Constant]):
        self.constants = constants
        self.value = {name: constant.value for name, constant in constants.items()}
        self.pipes = Pipes(constants)
        slowdowns = [self.pipes.slowdown(pipe) for pipe in _PIPES]
        self.slowdowns = slowdowns if max(slowdowns) > 1 else None
        self._decoded: dict[int, tuple] = {}

    def program(
        self, path: Path, codes: dict[int, ControlCode], loads_known: bool = False
    ) -> list[tuple]:
        """A path as the loop of run() wants it: one tuple an instruction.

        loads_known: loads from global memory have events; one without an event has every lane off, and waits for none
        """
        out = []
        for step in path:
            address = step.instruction.address
            known = self._decoded.get(address)
            if known is None:
                cost, code = self.pipes.cost(step.instruction), codes[address]
                pipe = _PIPES.index(cost.pipe) if cost.pipe else -1
                known = (
                    max(1, code.stall), code.waits, -1 if code.write is None else code.write,
                    -1 if code.read is None else code.read, pipe, cost.busy, cost.latency, cost.read,
                )  # fmt: skip
                self._decoded[address] = known
            event = step.event
            off = loads_known and event is None and step.instruction.guard
            if off and step.instruction.name == "LDG":
                known = (*known[:6], known[7], known[7])
            if event is not None and event.kind == "wgmma":
                # The last MMA of a group carries the group's scoreboard.
                last = "gsb0" in step.instruction.operands
                event = Event("wgmma", event.line, (*event.data, last))
            out.append((*known, event))
        return out

    def run(
        self, paths: dict[tuple[int, int], Path], codes, trace: Trace, start: int = 0, graph=None
    ) -> Result:
        """Walk all paths to their ends. RuntimeError with the waits if nothing can continue.

        start: number of a start offset (starts.py)        graph: an empty one, to be filled
        """
        self._decoded = {}
        return _Run(self, paths, codes, trace, start, graph).run()


class _Run:
    def __init__(self, machine: Machine, paths, codes, trace: Trace, start: int, graph):
        self.graph, self.at = graph, 0  # at: node of the instruction that issues
        self.value = value = machine.value
        self.first_copies = FirstCopies(start, value["lat_global"])
        self.machine = machine
        self.ctas = sorted({cta for cta, _ in paths})
        loads_known = any(e.kind == "gload" for events in trace.warps.values() for e in events)
        self.warps = [
            _Warp(name, path, machine.program(path, codes, loads_known), name[1] % SUB_PARTITIONS)
            for name, path in sorted(paths.items())
        ]
        self.threads = 32 * sum(1 for cta, _ in paths if cta == self.ctas[0])
        events = [(warp, e) for warp, path in trace.warps.items() for e in path]
        bars = (warp for warp, e in events if e.kind == "cluster_bar" and e.data[0])
        self.met, self.cluster_bars = Counter[tuple[int, int]](), Counter(bars)
        self.barriers = {key: Barrier(count) for key, count in trace.counts.items()}
        self.named: dict[tuple, NamedBarrier] = {}
        self.tensor = {cta: TensorQueue() for cta in self.ctas}
        self.loads = {cta: CopyEngine(value["tma_rate"], value["tma_latency"]) for cta in self.ctas}
        self.stores = {
            cta: CopyEngine(value["tma_rate"], value["store_latency"]) for cta in self.ctas
        }
        self.sends = {cta: CopyEngine(SEND_RATE, value["remote_arrive"]) for cta in self.ctas}
        mmas = {cta for (cta, _), e in events if e.kind == "mma"}
        # In a pair the even CTA issues for both; the other's copies reach its own half, and the
        # pair's MMA is as slow as the slower half: count one of them.
        self.leader = min(mmas, default=0)
        self.heap: list = []
        self.wgmma = WgmmaQueue(self.tensor, value)
        # When the stores of a warp have read their bytes: those of the open group, and whole groups.
        self.store_ends: dict[tuple[int, int], list[float]] = defaultdict(list)
        self.store_groups: dict[tuple[int, int], list[float]] = defaultdict(list)
        self.number = 0
        self.latest = 0.0
        self.contention = value["contention"]

    def later(self, when: float, action) -> None:
        """Do something at a cycle; in the order of submission within a cycle."""
        self.number += 1
        heapq.heappush(self.heap, (when, -1.0, self.number, action))

    def ready(self, when: float, warp: _Warp) -> None:
        """The warp may look at its next instruction at a cycle."""
        self.number += 1
        heapq.heappush(self.heap, (when, warp.last, self.number, warp))

    def run(self) -> Result:
        for warp in self.warps:
            self.ready(0.0, warp)
        scheduler = {(c, s): 0.0 for c in self.ctas for s in range(SUB_PARTITIONS)}
        issued = dict.fromkeys(scheduler, 0)
        pipe_free: dict = {}
        pipe_busy: dict = {}
        shared = _PIPES.index("shared")
        slowdowns = self.machine.slowdowns
        heap = self.heap
        while heap:
            now, _, _, warp = heapq.heappop(heap)
            if not isinstance(warp, _Warp):
                warp(now)
                continue
            program, scoreboards = warp.program, warp.scoreboards
            place = (warp.cta, warp.partition)
            while warp.pc < len(program):
                stall, waits, write, read, pipe, busy, latency, until_read, event = program[warp.pc]
                when = now
                for number in waits:
                    if scoreboards[number] > when:
                        when = scoreboards[number]
                        if warp.blocked is None and warp.why[number] is not None:
                            warp.blocked = (now, warp.why[number])
                if when == _NEVER:
                    warp.parked = True
                    break
                if event is not None and event.kind == "wgmma":
                    when = max(when, self.wgmma.room(warp))
                if scheduler[place] > when:
                    when = scheduler[place]
                if pipe >= 0:
                    unit = (warp.cta, pipe) if pipe == shared else (*place, pipe)
                    free = pipe_free.get(unit, 0.0)
                    if free > when:
                        when = free
                if when > now:
                    self.ready(when, warp)
                    break
                # issue
                graph = self.graph
                if graph is not None:
                    queue = None if pipe < 0 else (*unit[:-1], _PIPES[pipe])
                    self.at = graph.issue(now, warp.name, waits, place, queue)
                scheduler[place] = now + 1
                issued[place] += 1
                warp.last = now
                if warp.blocked is not None:
                    since, why = warp.blocked
                    warp.waits.append((since, now, why))
                    warp.blocked = None
                    for number in waits:
                        warp.why[number] = None
                if pipe >= 0:
                    if slowdowns is not None and self.tensor[warp.cta].free > now:
                        busy *= slowdowns[pipe]
                    pipe_free[unit] = now + busy
                    pipe_busy[unit] = pipe_busy.get(unit, 0.0) + busy
                    if self.contention and pipe == shared and warp.cta == self.leader:
                        self.tensor[warp.cta].interfere(busy * self.contention)
                if write >= 0:
                    scoreboards[write] = max(scoreboards[write], now + latency)
                if read >= 0:
                    scoreboards[read] = max(scoreboards[read], now + until_read)
                if graph is not None:
                    name = result_name(warp.path[warp.pc].instruction.name)
                    if write >= 0 and (event is None or event.kind != "wait"):
                        graph.result(self.at, warp.name, write, latency, name)
                    if read >= 0:
                        graph.result(self.at, warp.name, read, until_read, name)
                warp.pc += 1
                asleep = False
                if event is not None:
                    asleep = self.happen(now, warp, event, write)
                if graph is not None:
                    graph.occupied(self.at, warp.name, 1 if asleep else stall, queue, busy)
                now += stall
                if now > self.latest:
                    self.latest = now
                if asleep:
                    break
                if heap and heap[0][0] <= now:
                    self.ready(now, warp)
                    break
        stuck = [w for w in self.warps if w.pc < len(w.program)]
        if stuck:
            at = {w.name: [y for y in w.why if y is not None] for w in stuck}
            raise RuntimeError(f"no warp can go on at cycle {self.latest:.0f}; they wait for {at}")
        return self._result(issued, pipe_busy)

    # -- events ------------------------------------------------------------------------------

    def happen(self, now: float, warp: _Warp, event, write: int) -> bool:
        """The effect of an event; True if the warp must wait."""
        kind, value = event.kind, self.value
        if kind == "wait":
            self._wait(now, warp, event, write)
        elif kind == "arrive":
            warp.marks.append((now, "arrive"))
            for operation, key, amount in event.effects:
                latency = value["mbarrier_arrive" if key[0] == warp.cta else "remote_arrive"]
                if operation == "expect_tx":
                    latency = 0.0
                self._effect(now + latency, operation, key, amount)
        elif kind == "mma":
            m, n, a_in_tmem, ctas = event.data
            interval = umma_interval(ctas, m, n, a_in_tmem)
            tail = value["umma_tail_ts" if a_in_tmem else "umma_tail_ss"]
            tail += value["umma_tail_pair"] if ctas == 2 else 0
            operands = operand_bytes(ctas, m, n, a_in_tmem) / value["rate_shared"]
            queue = self.tensor[warp.cta]
            queue.submit(now, interval, min(operands, interval), tail)
            if self.graph is not None:
                self.graph.multiplied(("tensor", warp.cta), self.at, *queue.busy[-1], tail)
        elif kind == "commit":
            warp.marks.append((now, "commit"))
            when = self.tensor[warp.cta].commit(now, value["umma_commit"])
            for operation, key, amount in event.effects:
                self._effect(when, operation, key, amount, ("tensor", warp.cta))
        elif kind == "load":
            nbytes = sum(amount for op, _, amount in event.effects if op == "complete_tx")
            when = self.loads[warp.cta].submit(now, nbytes)
            when += self.first_copies.late(event.effects)
            start = when - nbytes / value["tma_rate"]
            self._use_shared(warp.cta, start, when, nbytes)
            if event.data[0]:
                self._use_shared(warp.cta, start, when, nbytes * self.contention)
            if self.graph is not None:
                busy = self.loads[warp.cta].busy[-1]
                self.graph.copied(("copies", warp.cta), self.at, *busy, when)
            for operation, key, amount in event.effects:
                self._effect(when, operation, key, amount, ("copies", warp.cta))
        elif kind == "store":
            end = self._store(now, warp.cta, *event.data)
            self.latest = max(self.latest, end)
            self.store_ends[warp.name].append(end)
            if self.graph is not None:
                busy = self.stores[warp.cta].busy[-1]
                self.graph.copied(("stores", warp.cta), self.at, *busy, end, warp.name)
        elif kind == "send":
            self._send(now, warp, event)
        elif kind == "flush":
            if self.graph is not None:
                self.graph.flushed(warp.name)
            ends = self.store_ends.pop(warp.name, [now])
            self.store_groups[warp.name].append(max(ends))
        elif kind == "claim":
            for operation, key, amount in event.effects:
                self._effect(now + value["claim"], operation, key, amount)
        elif kind == "wgmma":
            self.wgmma.submit(now, warp, *event.data)
        elif kind == "wgwait":
            open_groups = warp.groups[: max(0, len(warp.groups) - event.data[0])]
            if open_groups and open_groups[-1] > now:
                warp.waits.append((now, open_groups[-1], ("wgmma", 0)))
                self.ready(open_groups[-1], warp)
                return True
        elif kind == "drain":
            groups = self.store_groups[warp.name]
            awaited = groups[: max(0, len(groups) - event.data[0])]
            self.ready(max([now + 1, *awaited]), warp)
            if self.graph is not None:
                self.graph.drained(warp.name, event.data[0])
            return True
        elif kind == "bar":
            return self._bar(now, warp, event)
        elif kind == "cluster_bar" and event.data[0]:
            # A warp that has ended counts as arrived: the n-th barrier awaits those that have one.
            self.met[warp.name] = nth = self.met[warp.name] + 1
            threads = 32 * sum(number >= nth for number in self.cluster_bars.values())
            return self._meet(now, warp, ("cluster", nth), threads, "cluster_sync", True)
        return False

    def _wait(self, now: float, warp: _Warp, event, write: int) -> None:
        key, parity = event.data
        barrier = self.barriers.setdefault(key, Barrier(1))
        warp.marks.append((now, "wait"))
        warp.why[write] = key
        wake = self.value["mbarrier_wake"]
        if self.graph is not None:
            self.graph.wait(self.at, warp.name, write, key, wake, barrier.passed(parity))
        if barrier.passed(parity):
            warp.scoreboards[write] = now + wake
        else:
            warp.scoreboards[write] = _NEVER
            barrier.waiters.append((parity, warp, write))

    def _effect(self, when: float, operation: str, key, amount: int, by=None) -> None:
        """Something happens to an mbarrier. by: the engine whose latest work it is; None: the warp itself."""
        graph, barrier, wake = self.graph, self.barriers[key], self.value["mbarrier_wake"]
        number = graph.effect(self.at, by, key, when) if graph is not None else 0

        def apply(now):
            before = barrier.phase
            awake = barrier.apply(operation, amount)
            if graph is not None:
                graph.applied(number, key, barrier.phase > before, now)
            for _, warp, write in awake:
                if graph is not None:
                    graph.woken(warp.name, write, key, wake)
                warp.scoreboards[write] = now + wake
                if warp.parked:
                    warp.parked = False
                    self.ready(warp.scoreboards[write], warp)

        self.later(when, apply)

    def _store(self, now: float, cta: int, nbytes: int, reduces: bool) -> float:
        """A bulk store or reduction: when its source is read, which L2 delays as long as it adds."""
        rate = self.value["reduce_rate" if reduces else "tma_rate"]
        end = self.stores[cta].submit(now, nbytes, rate)
        self._use_shared(cta, end - nbytes / rate, end, nbytes * self.contention)
        return end

    def _send(self, now: float, warp: _Warp, event) -> None:
        """Stores into the shared memory of another CTA, whose mbarrier counts their bytes."""
        nbytes = sum(amount for _, _, amount in event.effects)
        when = self.sends[warp.cta].submit(now, nbytes)
        if self.graph is not None:
            busy = self.sends[warp.cta].busy[-1]
            self.graph.copied(("sends", warp.cta), self.at, *busy, when)
        for operation, key, amount in event.effects:
            self._effect(when, operation, key, amount, ("sends", warp.cta))
        for cta in {key[0] for _, key, _ in event.effects}:
            self._use_shared(cta, now, when, nbytes * self.contention)

    def _use_shared(self, cta: int, start: float, end: float, nbytes: float) -> None:
        """A copy writes or reads bytes of shared memory between two cycles, where an MMA may read."""
        if cta != self.leader or not nbytes:
            return
        queue = self.tensor[cta]
        pieces = max(1, round(nbytes / SHARED_PIECE_BYTES))
        cost = nbytes / pieces / self.value["rate_shared"]
        for piece in range(pieces):
            when = start + (end - start) * (piece + 1) / pieces
            self.later(when, lambda _now: queue.interfere(cost))

    def _bar(self, now: float, warp: _Warp, event) -> bool:
        number, threads, waits = event.data
        expected = threads if threads else self.threads
        return self._meet(now, warp, (warp.cta, number), expected, "bar_sync", waits)

    def _meet(self, now: float, warp: _Warp, key, expected: int, latency: str, waits: bool) -> bool:
        barrier = self.named.setdefault(key, NamedBarrier())
        awake = barrier.arrive(32, expected, warp if waits else None)
        if self.graph is not None:
            names = None if awake is None else [other.name for other in awake]
            self.graph.meet(self.at, ("bar", *key), self.value[latency], names)
        for other in awake or ():
            self.ready(now + self.value[latency], other)
        return waits

    def _result(self, issued, pipe_busy) -> Result:
        busy = {}
        for unit, cycles in pipe_busy.items():
            busy[(*unit[:-1], _PIPES[unit[-1]])] = cycles
        return Result(
            cycles=self.latest,
            waits={w.name: w.waits for w in self.warps},
            ends={w.name: w.last for w in self.warps},
            issued=issued,
            pipe_busy=busy,
            tensor={cta: queue.busy for cta, queue in self.tensor.items()},
            copies={cta: engine.busy for cta, engine in self.loads.items()},
            marks={w.name: w.marks for w in self.warps},
            unknown_opcodes=sorted(self.machine.pipes.unknown),
            graph=self.graph,
        )


# Bytes of a copy that arrive at once, for the sharing of shared memory: a few MMAs' worth.
SHARED_PIECE_BYTES = 2048
