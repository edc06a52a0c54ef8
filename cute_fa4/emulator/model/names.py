"""Names of the warps, mbarriers and reasons of a launch, as tables show them."""

from __future__ import annotations

import re
from collections import defaultdict

from cute_fa4.emulator.model import accounts
from cute_fa4.emulator.model.launches import Launch

WORDS = {
    "issue": "issuing instructions",
    "stall": "fixed latency of instructions",
    "turn": "issue slots taken by other warps",
    "meet": "bar.sync and cluster barriers",
    "drain": "bulk stores to read their bytes",
    "arrive": "arrivals to take effect",
    "join": "arrivals to take effect",
    "other": "other",
}
PIPES = {
    "fma": "fma pipe",
    "alu": "integer and compare pipe",
    "convert": "conversion pipe",
    "mufu": "special-function pipe (ex2, rcp, ...)",
    "uniform": "uniform pipe",
    "tmem": "tensor-memory pipe",
    "shared": "shared memory",
}


def family(name: str) -> str:
    """The mbarriers of one ring are one family.

    >>> family("kv_full[3]"), family("done")
    ('kv_full', 'done')
    """
    return re.sub(r"(\[\d+\])+$", "", name)


class Names:
    """Names of warps, mbarriers and reasons of one launch."""

    def __init__(self, launch: Launch, paths: dict):
        self.launch = launch
        self.roles = _roles(launch, paths)
        self.role_of = {warp: name for name, warps in self.roles.items() for warp in warps}
        self.waited_at: dict[tuple, int] = {}
        for path in paths.values():
            for step in path:
                if step.event is not None and step.event.kind == "wait":
                    self.waited_at.setdefault(step.event.data[0], step.event.line)

    def barrier(self, key) -> str:
        name = self.launch.barriers.get(key, "")
        if name and not name.startswith("mbarrier at"):
            return family(name)
        if key in self.waited_at:
            return f"mbarrier awaited at {self.launch.source(self.waited_at[key])}"
        return name or f"mbarrier at shared 0x{key[1]:x}"

    def owner(self, owner) -> str:
        """A warp's role, an engine, or an mbarrier."""
        if owner in self.role_of:
            return self.role_of[owner]
        return owner if isinstance(owner, str) else self.barrier(owner)

    def reason(self, reason: accounts.Reason) -> str:
        kind, name = reason
        if kind == "wait":
            return f"wait for {self.barrier(name)}"
        if kind == "result":
            return f"result of {name}"
        if kind in ("pipe", "others"):
            return PIPES.get(str(name), f"{name} pipe")
        return WORDS.get(kind, kind)


def _roles(launch: Launch, paths: dict) -> dict[str, list[tuple[int, int]]]:
    """Role name -> warps. Warps without a name belong together where they execute the same instructions."""
    groups: dict[tuple[int, str | frozenset[int]], list] = defaultdict(list)
    for warp, path in sorted(paths.items()):
        named = launch.roles.get(warp, "")
        code = frozenset(step.instruction.address for step in path)
        groups[(warp[0], named) if named else (warp[0], code)].append(warp)
    several = len({rank for rank, _ in paths}) > 1
    found = {}
    for (rank, key), warps in groups.items():
        numbers = [index for _, index in warps]
        name = key if isinstance(key, str) else f"warp{'s' * (len(numbers) > 1)} {_ranges(numbers)}"
        found[f"{name} of CTA {rank}" if several else name] = warps
    return found


def _ranges(numbers: list[int]) -> str:
    """
    >>> _ranges([0, 1, 2, 3, 7])
    '0-3, 7'
    """
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)
