"""The path of a warp through the machine code, reconstructed from the emulated events.

The emulator executes PTX, the model costs SASS. ptxas keeps the order of operations that other threads can observe.
So the SASS control-flow graph, read as an automaton that emits the instructions below, must emit the warp's events,
and the cheapest such walk is its path:

    event   wait            arrive         init       mma      commit  load     flush
    SASS    SYNCS.PHASECHK  SYNCS.ARRIVE   SYNCS.EXCH UTC*MMA  UTCBAR  UTMALDG  UTMACMDFLUSH
    event   store
    SASS    UTMASTG, UTMAREDG, UBLKRED, UBLKCP.G.S
    event   drain           bar            cluster_bar  ld    st
    SASS    DEPBAR.LE SB0   BAR            UCGABAR_*    LDTM  STTM
    event   wgmma           wgwait            gload  gstore  atomic
    SASS    HGMMA           WARPGROUP.DEPBAR  LDG    STG     ATOM*, RED*

    matched out of source order          a little: ptxas keeps the order of the source (ORDER_COST)
    matched differently than before      a little: an instruction comes from one PTX line (TIE_COST)
    in the SASS but not in the events    high (UNMATCHED_COST), less under a guard: a retry of a
                                         wait, or the expansion of tcgen05.alloc; none for a load of
                                         which every lane may be off
    event without an instruction         high; afterwards an error for events of SYNCHRONISING

Among paths of equal cost the shortest wins, so slow paths without events (denormals) are not taken. uncounted.py finds
memory accesses that were executed on such a path.
"""

from __future__ import annotations

import heapq
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from cute_fa4.emulator.model.program import Function, Instruction
from cute_fa4.emulator.model.trace import EXTRA, Event, Trace, lines_of

_TOKENS = (
    ("wait", re.compile(r"SYNCS\.PHASECHK")),
    ("arrive", re.compile(r"SYNCS\.ARRIVE")),
    ("init", re.compile(r"SYNCS\.EXCH")),
    ("mma", re.compile(r"UTC[A-Z]+MMA")),
    ("commit", re.compile(r"UTCBAR")),
    ("load", re.compile(r"UTMALDG|UBLKCP(?!\.G)")),
    ("store", re.compile(r"UTMASTG|UTMAREDG|UBLKRED|UBLKCP\.G")),
    ("send", re.compile(r"STAS\.(64|128)")),
    ("flush", re.compile(r"UTMACMDFLUSH")),
    ("claim", re.compile(r"UGETNEXTWORKID")),
    ("bar", re.compile(r"BAR\.(SYNC|ARV)")),
    ("cluster_bar", re.compile(r"UCGABAR")),
    ("ld", re.compile(r"LDTM")),
    ("st", re.compile(r"STTM")),
    ("wgmma", re.compile(r"[A-Z]GMMA")),
    ("wgwait", re.compile(r"WARPGROUP\.DEPBAR")),
    ("gload", re.compile(r"LDG(?!STS)")),
    ("gstore", re.compile(r"STG")),
    ("atomic", re.compile(r"(ATOMG?|ATOMS|REDG?|REDS)(\.|$)")),
    ("async_copy", re.compile(r"LDGSTS")),
    ("sload", re.compile(r"LDS(\.|$)")),
    ("sstore", re.compile(r"STS(\.|$)")),
    ("matrices", re.compile(r"LDSM")),
    ("warp_mma", re.compile(r"[HIQB]MMA")),
    ("shuffle", re.compile(r"SHFL")),
    ("special", re.compile(r"MUFU\.(EX2|LG2|RCP|RSQ|SQRT|SIN|COS|TANH)")),
    ("multiply_add", re.compile(r"FFMA(\.|$)")),
)
SYNCHRONISING = {
    "wait",
    "arrive",
    "mma",
    "commit",
    "load",
    "store",
    "send",
    "claim",
    "bar",
    "cluster_bar",
    "wgmma",
}

UNMATCHED_COST = 60.0
LOST = 3  # events in a row: ptxas writes mbarrier.init, of 32 mbarriers each, as a store to shared memory
GUARDED_COST = 5.0
# A load with every lane off leaves no event, and one turn of a loop may issue dozens of such loads.
GUARDED_LOAD_COST = 0.0
ORDER_COST = 8.0
TIE_COST = 4.0
INSTRUCTION_COST = 1e-3
# A walk that costs this much more than the current best is discarded.
BEAM = 300.0


class AlignmentError(RuntimeError):
    """No walk through the machine code matches the emulated warp; the message has the place."""


@dataclass(frozen=True)
class Step:
    """One executed SASS instruction, with the event it caused in the emulator, if any."""

    instruction: Instruction
    event: Event | None = None


Path = list[Step]


def token(ins: Instruction) -> str | None:
    """The kind of event an instruction is."""
    if ins.opcode == "DEPBAR.LE" and ins.operands.startswith("SB0"):
        return "drain"
    return next((kind for kind, pattern in _TOKENS if pattern.match(ins.opcode)), None)


def by_answer(block: Sequence[Instruction]) -> Sequence[Instruction]:
    """The instructions of a block, with a try_wait moved to the branch that tests its result.

    ptxas hoists a relaxed try_wait across MMAs; the branch after them is then the wait.
    """
    last = block[-1]
    if last.opcode != "BRA" or not last.guard:
        return block
    answer = last.guard.lstrip("!")
    asked = [ins for ins in block if token(ins) == "wait" and ins.operands.startswith(answer + ",")]
    if not asked or asked[-1].guard:
        return block
    return [*(ins for ins in block if ins is not asked[-1]), asked[-1]]


def paths(function: Function, ptx: str, traces: list[Trace]) -> list[dict[tuple[int, int], Path]]:
    """The path of every warp of every trace. AlignmentError if a trace does not match the code.

    ptx: the text of the traces, for the order of its instructions. All traces are aligned twice: the first pass
    learns the PTX line of each instruction.

    Lines are ordered by their first execution or, if no walk is found, by their position in the text. A loop whose
    first iteration is peeled comes late in the first order and early in the second.
    """
    try:
        return _paths(_Aligner(function, ptx, traces), traces)
    except AlignmentError:
        return _paths(_Aligner(function, ptx, traces, as_written=True), traces)


def _paths(aligner: _Aligner, traces: list[Trace]) -> list[dict[tuple[int, int], Path]]:
    for _ in range(2):
        found = [
            {warp: aligner.align(events, warp) for warp, events in trace.warps.items()}
            for trace in traces
        ]
        aligner.learn(path for warps in found for path in warps.values())
    return found


def packed(found: list[dict[tuple[int, int], Path]], traces: list[Trace]) -> list[dict]:
    """Paths as arrays of addresses and of numbers of events: the input of unpacked()."""
    out = []
    for warps, trace in zip(found, traces, strict=True):
        packed_paths = {}
        for who, path in warps.items():
            numbers = {id(event): number for number, event in enumerate(trace.warps[who])}
            packed_paths[who] = (
                array("q", [step.instruction.address for step in path]),
                array("q", [numbers.get(id(step.event), -1) for step in path]),
            )
        out.append(packed_paths)
    return out


def unpacked(found: list[dict], function: Function, traces: list[Trace]) -> list[dict]:
    """The inverse of packed(), with the events of the traces that were aligned."""
    instructions = {ins.address: ins for ins in function.instructions}
    out = []
    for warps, trace in zip(found, traces, strict=True):
        paths = {}
        for who, (addresses, numbers) in warps.items():
            events = trace.warps[who]
            paths[who] = [
                Step(instructions[address], None if number < 0 else events[number])
                for address, number in zip(addresses, numbers, strict=True)
            ]
        out.append(paths)
    return out


class _Aligner:
    def __init__(self, function: Function, ptx: str, traces: list[Trace], as_written: bool = False):
        self.function = function
        recorded = {e.kind for trace in traces for events in trace.warps.values() for e in events}
        unrecorded = set(EXTRA) - recorded
        self.tokens = {
            block.index: [
                (ins, token(ins))
                for ins in by_answer(block.instructions)
                if token(ins) and token(ins) not in unrecorded
            ]
            for block in function.blocks
        }
        self._sass_rank = _ranks(
            (kind, ins.address)
            for block in function.blocks
            for ins, kind in self.tokens[block.index]
        )
        executed = (
            (event.kind, event.line)
            for trace in traces
            for events in trace.warps.values()
            for event in events
        )
        self._place = {} if as_written else _execution_order(traces)
        written = lines_of(ptx, function.name)
        lines = ((kind, self._place.get(line, line)) for kind, line in (*written, *executed))
        self._ptx_rank = _ranks(lines)
        self._seen: dict[int, Counter] = {}
        self._cache: dict[tuple, list[tuple[Instruction, int | None]]] = {}

    def learn(self, found) -> None:
        """Count the PTX lines that each instruction was matched with."""
        seen: dict[int, Counter] = defaultdict(Counter)
        for path in found:
            for step in path:
                if step.event is not None:
                    seen[step.instruction.address][step.event.line] += 1
        self._seen = dict(seen)
        self._cache.clear()

    def align(self, events: list[Event], who) -> Path:
        """The path of a warp with these events."""
        key = tuple((event.kind, event.line) for event in events)
        if key not in self._cache:
            self._cache[key] = self._walk(events, who)
        matched = self._cache[key]
        return [Step(ins, None if at is None else events[at]) for ins, at in matched]

    def _walk(self, events: list[Event], who) -> list[tuple[Instruction, int | None]]:
        blocks, successors = self.function.blocks, self.function.successors
        best: dict[tuple[int, int], float] = {(0, 0): 0.0}
        came: dict[tuple[int, int], tuple] = {}
        heap = [(0, 0.0, 0)]
        floor: dict[int, float] = {}
        end = None
        furthest = 0
        while heap:
            at, cost, block = heapq.heappop(heap)
            if cost > best[at, block]:
                continue
            furthest = max(furthest, at)
            floor[at] = min(floor.get(at, cost), cost)
            if cost > floor[at] + BEAM:
                continue
            inside = self._block(block, events, at)
            length = len(blocks[block].instructions) * INSTRUCTION_COST
            for reached, (more, matches) in inside.items():
                total = cost + more + length
                last = blocks[block].instructions[-1]
                if last.name == "EXIT" and reached == len(events):
                    if end is None or total < end[0]:
                        end = (total, (at, block), matches)
                    if last.guard is None:
                        continue
                for follower in successors[block]:
                    state = (reached, follower)
                    if total < best.get(state, float("inf")):
                        best[state] = total
                        came[state] = ((at, block), matches)
                        heapq.heappush(heap, (reached, total, follower))
        if end is None:
            event = events[min(furthest, len(events) - 1)]
            raise AlignmentError(
                f"warp {who}: no walk past event {furthest} of {len(events)} ({event.kind}, PTX "
                f"line {event.line}) through {self.function.name[:60]}"
            )
        _, state, matches = end
        walk = [(state, matches)]
        while state in came:
            state, matches = came[state]
            walk.append((state, matches))
        path: list[tuple[Instruction, int | None]] = []
        used: set[int] = set()
        for (_, block), matches in reversed(walk):
            matched = dict(matches)
            for ins in blocks[block].instructions:
                path.append((ins, matched.get(ins.address)))
            used.update(matched.values())
        lost = [e for i, e in enumerate(events) if i not in used and e.kind in SYNCHRONISING]
        if lost:
            raise AlignmentError(
                f"warp {who}: {len(lost)} events without an instruction, the first: {lost[0]}"
            )
        return path

    def _block(self, block: int, events: list[Event], at: int) -> dict[int, tuple[float, tuple]]:
        """Events reached from `at` through a block -> (cost, ((address, event number), ...))."""
        states = {at: (0.0, ())}
        for ins, kind in self.tokens[block]:
            after: dict[int, tuple[float, tuple]] = {}

            def offer(position, cost, matches, after=after):
                if position not in after or cost < after[position][0]:
                    after[position] = (cost, matches)

            skip = GUARDED_COST if ins.guard else UNMATCHED_COST
            if ins.guard and kind == "gload":
                skip = GUARDED_LOAD_COST
            for position, (cost, matches) in states.items():
                offer(position, cost + skip, matches)
                # The event itself, or the one after events that no instruction stands for.
                for lost in range(LOST + 1):
                    where = position + lost
                    if where < len(events) and events[where].kind == kind:
                        more = lost * UNMATCHED_COST + self._cost(ins, events[where])
                        offer(where + 1, cost + more, (*matches, (ins.address, where)))
            least = min(cost for cost, _ in after.values())
            states = {p: s for p, s in after.items() if s[0] <= least + BEAM}
        return states

    def _cost(self, ins: Instruction, event: Event) -> float:
        kind = event.kind
        line = self._place.get(event.line, event.line)
        place = abs(self._sass_rank[kind, ins.address] - self._ptx_rank[kind, line])
        seen = self._seen.get(ins.address)
        tie = TIE_COST * (1 - seen[event.line] / seen.total()) if seen else 0.0
        return ORDER_COST * place + tie


def _execution_order(traces: list[Trace]) -> dict[int, int]:
    """PTX line -> its position if lines were in the order of their first execution.

    The assembler lays out loops in execution order; the compiler may have written the last one first. The order of
    lines would then confuse one loop with another that has the same waits and arrivals. The trace with the most
    lines of each warp counts.
    """
    longest: dict[tuple[int, int], list[int]] = {}
    for trace in traces:
        for who, events in trace.warps.items():
            lines = list(dict.fromkeys(event.line for event in events))
            if len(lines) > len(longest.get(who, ())):
                longest[who] = lines
    place: dict[int, int] = {}
    for lines in longest.values():
        for line, slot in zip(lines, sorted(lines), strict=True):
            place.setdefault(line, slot)
    return place


def _ranks(pairs) -> dict[tuple[str, int], float]:
    """(kind, number) -> its relative position among the numbers of its kind, 0 to 1."""
    by_kind = defaultdict(set)
    for kind, number in pairs:
        by_kind[kind].add(number)
    return {
        (kind, number): i / max(1, len(numbers) - 1)
        for kind, numbers in by_kind.items()
        for i, number in enumerate(sorted(numbers))
    }
