"""A modelled profile of one launch: where the cycles of its CTA go, and what would shorten it.

    launches.py -> ptxas.py -> control_codes.py -> align.py -> machine.py with a graph.py -> here

The numbers are plain (dicts, lists, strings), so that table.py, page.py and JSON show the same.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial

from cute_fa4.emulator.machine.warp import WARP_SIZE
from cute_fa4.emulator.model import (
    accounts,
    align,
    control_codes,
    loops,
    nvdisasm,
    ptxas,
    stated_error,
    uncounted,
)
from cute_fa4.emulator.model.constants import Constant, of_target
from cute_fa4.emulator.model.graph import Graph, Tag
from cute_fa4.emulator.model.launches import Launch
from cute_fa4.emulator.model.machine import Machine
from cute_fa4.emulator.model.names import PIPES, WORDS, Names
from cute_fa4.emulator.model.timeline import timeline
from cute_fa4.emulator.ptx.syntax import RESERVED_SHARED_BYTES
from cute_fa4.emulator.run.launch import (
    MAX_CTAS_PER_SM,
    REGISTERS_PER_SM,
    SHARED_BYTES_PER_SM,
    SMS,
    THREADS_PER_SM,
)

STATED_ERROR = stated_error.text()

BOUND_FROM = 0.90
"""A resource that is busy for less of the time does not bind: what is left is waiting for each other."""


class ModelError(RuntimeError):
    """A kernel that the model cannot follow; the message says why and what to do."""


@dataclass
class Role:
    """Warps with one task. cycles: reason -> cycles a turn of one of its warps; the reasons add up to the turn."""

    name: str
    warps: list[int]
    registers: int
    instructions: float
    cycles: dict[str, float]
    loop: str = ""
    turns: int = 0
    cta: int = 0  # rank in the cluster


@dataclass
class Wait:
    """Waits of a role for one family of mbarriers. cycles: a turn; ended_by: who let it go on, share of the cycles."""

    barrier: str
    role: str
    at: str
    cycles: float
    ended_by: dict[str, float]


@dataclass
class Profile:
    """One kernel. Everything is a turn of its main loop, or, where turns is 1 and loop empty, all of a CTA.

    cycles     of one CTA (or cluster), from its first instruction to its last completion
    turn       cycles of a turn in the steady state        turns  how many of them it covers
    busy       resource -> share of these cycles in which it works
    path       what the longest chain of causes consists of -> cycles a turn
    what_if    change -> cycles of the CTA, at least
    """

    kernel: str
    cycles: float
    turn: float
    turns: int
    loop: str
    bound: str
    busy: dict[str, float]
    roles: list[Role]
    waits: list[Wait]
    path: dict[str, float]
    what_if: dict[str, float]
    launch: dict
    registers: int
    stack_bytes: int
    cta: int = 0  # rank of the CTA that sets the pace
    notes: list[str] = field(default_factory=list)
    uncounted: dict[str, str] = field(default_factory=dict)  # accesses that paths lack, by kind
    error: str = STATED_ERROR
    timeline: dict = field(default_factory=dict)

    def as_dict(self) -> dict:
        """Plain data, for JSON; from_dict() is the inverse."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict) -> Profile:
        """The profile that as_dict() came from."""
        data = dict(data)
        data["roles"] = [Role(**role) for role in data["roles"]]
        data["waits"] = [Wait(**wait) for wait in data["waits"]]
        return cls(**data)


def modelled(
    launch: Launch, cubin: bytes, listing: str, constants: dict[str, Constant] | None = None
) -> Profile:
    """The profile of a recorded launch. cubin: its machine code; listing: nvdisasm -c of it.

    constants: those of the chip; None: of the one that the .target of the PTX is for.

    Raises ModelError where the run cannot be followed through the machine code, or waits for what is not modelled.
    """
    notes = []
    code = control_codes.read(cubin, listing, launch.name)
    try:
        [paths] = align.paths(code.function, launch.ptx, [launch.trace])
    except align.AlignmentError as error:
        raise ModelError(f"{launch.name}: {error}") from error
    lacks = uncounted.lacks([launch.trace], [paths])
    notes += [f"not counted: {lack.text(launch.ptx)}" for lack in lacks]
    if constants is None:
        constants, note = of_target(ptxas.target(launch.ptx))
        notes += [note] if note else []
    machine, graph = Machine(constants), Graph()
    try:
        result = machine.run(paths, code.codes, launch.trace, graph=graph)
    except RuntimeError as error:
        raise ModelError(
            f"{launch.name}: {error}. The kernel waits for something that the model does not know, such as cp.async "
            "on an mbarrier"
        ) from error
    if result.unknown_opcodes:
        notes.append(f"counted as integer instructions: {', '.join(result.unknown_opcodes)}")
    if "LDGSTS" in result.unknown_opcodes:
        notes.append("the latency of cp.async is not modelled: the estimate is too short by it")
    names = Names(launch, paths)
    turns = _main(code.function, paths, graph)
    if turns is None:
        reference, begin, end, number, loop = None, 0.0, result.cycles, 1, ""
    else:
        reference, found = turns
        first, last, number = found.steady
        nodes = graph.issued[reference]
        begin, end = graph.times[nodes[first]], graph.times[nodes[last]]
        loop = f"{names.role_of[reference]}, {launch.source(found.line) if found.line else 'loop'}"
    cta = reference[0] if reference else min(rank for rank, _ in paths)
    costs = {
        warp: [machine.pipes.cost(step.instruction) for step in path]
        for warp, path in paths.items()
    }
    working = accounts.busy(graph, costs, result, cta, begin, end)
    shares = {name: cycles / max(1.0, end - begin) for name, cycles in working.items()}
    resources = nvdisasm.resources(cubin, launch.name)
    roles, waits = _roles_and_waits(
        names, paths, graph, code.function, (begin, end, number), resources
    )
    last_node = max(range(len(graph.times)), key=graph.times.__getitem__)
    if reference:
        last_node = graph.issued[reference][turns[1].steady[1]]
    profile = Profile(
        kernel=launch.name,
        cycles=result.cycles,
        turn=(end - begin) / number,
        turns=number,
        loop=loop,
        bound=_bound(shares),
        busy=dict(sorted(shares.items(), key=lambda item: -item[1])),
        roles=roles,
        waits=waits,
        path=_path(names, graph, last_node, begin, number),
        what_if=_what_if(names, graph, result.cycles, waits, _whole(graph, costs, result, cta)),
        launch={
            "grid": list(launch.grid),
            "block": list(launch.block),
            "cluster": list(launch.cluster),
            "shared_bytes": launch.shared_bytes,
            "launches": launch.times,
        }
        | residency(
            launch.grid,
            launch.block,
            launch.shared_bytes,
            resources.registers,
            int(constants["sms"].value),
        ),
        registers=resources.registers,
        stack_bytes=resources.stack_bytes,
        cta=cta,
        notes=notes,
        uncounted={lack.kind: lack.text(launch.ptx) for lack in lacks},
    )
    profile.timeline = timeline(names, paths, graph, result, cta, (begin, end))
    return profile


def residency(grid, block, shared_bytes: int, registers: int, sms: int = SMS) -> dict:
    """How many CTAs an SM holds at a time, what limits them, and in how many waves the grid runs.

    Registers are allocated in units of 256 for a warp (CUDA C++ programming guide, occupancy calculator).

    >>> residency((296, 1, 1), (256, 1, 1), 100 << 10, 64)
    {'ctas_per_sm': 2, 'limited_by': 'shared memory', 'waves': 1}
    """
    warps = -(-math.prod(block) // WARP_SIZE)
    of_a_warp = -(-registers * WARP_SIZE // 256) * 256
    limits = {
        "shared memory": SHARED_BYTES_PER_SM // (shared_bytes + RESERVED_SHARED_BYTES),
        "registers": REGISTERS_PER_SM // max(1, of_a_warp * warps),
        "threads": THREADS_PER_SM // (warps * WARP_SIZE),
        "the number of CTAs": MAX_CTAS_PER_SM,
    }
    limit = min(limits, key=limits.__getitem__)
    held = max(1, limits[limit])
    return {"ctas_per_sm": held, "limited_by": limit, "waves": -(-math.prod(grid) // (sms * held))}


def _main(function, paths: dict, graph: Graph):
    """(warp, its main loop) that sets the pace: one that issues MMAs, else the one whose loop takes longest."""
    best = None
    for warp, path in sorted(paths.items()):
        times = [graph.times[node] for node in graph.issued[warp]]
        found = loops.main_loop(function, path, times)
        if found is None:
            continue
        inside = path[found.starts[0] : found.starts[-1]]
        multiplies = any(s.event is not None and s.event.kind == "mma" for s in inside)
        span = times[found.starts[-1]] - times[found.starts[0]]
        rank = (multiplies, found.waits, span)
        if best is None or rank > best[0]:
            best = rank, (warp, found)
    return None if best is None else best[1]


def _bound(shares: dict[str, float]) -> str:
    if not shares:
        return "nothing"
    busiest = max(shares, key=shares.__getitem__)
    if shares[busiest] >= BOUND_FROM:
        return PIPES.get(busiest, busiest)
    return f"waiting for each other (busiest: {PIPES.get(busiest, busiest)}, {shares[busiest]:.0%})"


def _roles_and_waits(names: Names, paths, graph: Graph, function, window, resources):
    begin, end, number = window
    roles = []
    waits: dict[tuple[str, str], list] = {}
    for name, warps in names.roles.items():
        spent: Counter = Counter()
        executed = 0
        for warp in warps:
            spent += accounts.account(graph, warp, begin, end)
            nodes = graph.issued[warp]
            executed += sum(begin <= graph.times[node] < end for node in nodes)
            _collect_waits(names, name, warp, paths[warp], graph, window, waits)
        share = 1 / len(warps) / number
        cycles: dict[str, float] = defaultdict(float)
        for reason, value in spent.items():
            cycles[names.reason(reason)] += value * share
        rest = (end - begin) / number - sum(cycles.values())
        if rest > 0.5:
            cycles["before its first or after its last instruction"] = rest
        times = [graph.times[node] for node in graph.issued[warps[0]]]
        loop = loops.main_loop(function, paths[warps[0]], times)
        roles.append(
            Role(
                name,
                [index for _, index in warps],
                _registers(paths[warps[0]], resources.registers),
                executed * share,
                _largest_first(cycles),
                names.launch.source(loop.line) if loop and loop.line else "",
                len(loop.starts) if loop else 0,
                warps[0][0],
            )
        )
    found = []
    for (barrier, role), (cycles, enders, line, count) in waits.items():
        total = sum(enders.values()) or 1.0
        shares = {who: value / total for who, value in enders.most_common()}
        found.append(
            Wait(barrier, role, names.launch.source(line), cycles / number / count, shares)
        )
    return roles, sorted(found, key=lambda wait: -wait.cycles)


def _collect_waits(names: Names, role, warp, path, graph: Graph, window, waits):
    """Add the waits of a warp for mbarriers to (barrier, role) -> [cycles, who ended them, PTX line, warps]."""
    begin, end, _ = window
    count = len(names.roles[role])
    asked: dict = {}
    nodes = graph.issued[warp]
    for at, step in enumerate(path):
        if step.event is not None and step.event.kind == "wait":
            asked[step.event.data[0]] = step.event.line
        if at == 0 or graph.times[nodes[at]] <= begin or graph.times[nodes[at - 1]] >= end:
            continue
        for reason, start, until in accounts._parts(graph, nodes[at - 1], nodes[at]):
            inside = min(until, end) - max(start, begin)
            if reason[0] != "wait" or inside <= 0:
                continue
            key = reason[1]
            entry = waits.setdefault(
                (names.barrier(key), role), [0.0, Counter(), asked.get(key, 0), count]
            )
            entry[0] += inside
            who = accounts.ender(graph, nodes[at], key)
            entry[1]["nobody" if who is None else names.owner(who)] += inside


def _registers(path, at_launch: int) -> int:
    """Registers a thread of the role: of its last setmaxnreg, else those of the launch."""
    for step in reversed(path):
        if step.instruction.name == "USETMAXREG":
            found = re.findall(r"\b(0x[0-9a-f]+|\d+)\b", step.instruction.operands)
            if found:
                return int(found[-1], 0)
    return at_launch


def _path(names: Names, graph: Graph, end: int, begin: float, number: int) -> dict[str, float]:
    """The longest chain by whose steps it has, in cycles a turn; the largest first."""
    spent: dict[str, float] = defaultdict(float)
    for (owner, reason), cycles in accounts.chain(graph, end, begin).items():
        kind = reason[0]
        if kind == "wait":
            text = f"{names.owner(owner)}: wake-up from {names.barrier(reason[1])}"
        elif kind in ("tensor", "copy"):
            text = "tensor core" if kind == "tensor" else "copies"
        elif kind in ("arrive", "join"):
            text = f"{names.owner(owner)}: {WORDS[kind]}"
        else:
            text = f"{names.owner(owner)}: {names.reason(reason)}"
        spent[text] += cycles / number
    return _largest_first(spent)


def _largest_first(cycles: dict[str, float]) -> dict[str, float]:
    return dict(sorted(cycles.items(), key=lambda item: -item[1]))


MOST_WHAT_IFS = 8
UNCHANGED = "nothing (how close this bound is)"


def _whole(graph: Graph, costs, result, cta: int) -> dict[str, float]:
    """Resource -> cycles in which it works, over the whole run."""
    return accounts.busy(graph, costs, result, cta, 0.0, result.cycles)


def _what_if(names: Names, graph: Graph, cycles: float, waits, work) -> dict[str, float]:
    """Change -> cycles that the CTA needs at least, the fewest first.

    The bound is the longest chain of causes without the change, in which no warp is kept from issuing by another, or
    the work of the busiest resource, if that is more. It is at most the estimate, and a change never adds to it.
    """
    changes: dict[str, tuple[Callable[[Tag], bool], str]] = {UNCHANGED: (lambda tag: False, "")}
    families: Counter = Counter()
    for wait in waits:
        families[wait.barrier] += wait.cycles
    for barrier, _ in families.most_common(MOST_WHAT_IFS):
        changes[f"waits for {barrier}"] = partial(_waits_for, names, barrier), ""
    for pipe, words in PIPES.items():
        if work.get(pipe):
            changes[f"time in the {words}"] = partial(_named, pipe), pipe
    if work.get("shared memory"):
        free = lambda tag: tag == Tag("pipe", "shared")
        changes["time of accesses to shared memory"] = free, "shared memory"
    if work.get("tensor core"):
        changes["time of MMAs"] = (lambda tag: tag.kind == "tensor", "tensor core")
    if work.get("copies"):
        changes["time of copies"] = (lambda tag: tag.kind == "copy", "copies")
    # The end of a CTA is an issue or a completion, and the stall count of its last instruction.
    after = cycles - max(graph.times)
    found = {}
    for change, (free, spared) in changes.items():
        times = graph.evaluate(partial(_free_or_of_others, free))
        left = max((value for name, value in work.items() if name != spared), default=0.0)
        found[change] = max(after + max(times), left)
    return dict(sorted(found.items(), key=lambda item: item[1]))


def _waits_for(names: Names, barrier: str, tag: Tag) -> bool:
    return tag.kind == "wait" and names.barrier(tag.name) == barrier


def _named(pipe: str, tag: Tag) -> bool:
    return tag.name == pipe


def _free_or_of_others(free: Callable[[Tag], bool], tag: Tag) -> bool:
    return tag.kind in ("issue", "others") or free(tag)
