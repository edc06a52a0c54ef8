"""Edits of PTX text: what is done (replace, delete, move, ...), and to which lines (a Place).

A Place says in words where a defect belongs, and finds it in whatever kernel it is given: by role, by what the line
does, and by the lines around it. It hardly counts, so that it survives a change of the kernel:

    waits = lines("mma", WAIT)                                 every wait of a role
    tile = waits.after(commit).first                          the first one after another place
    fence = lines("softmax", FENCE).ahead_of(arrival).last     the nearest one ahead of it

    replace(waits, by)      in every line of the place          delete(fence)      move(arrival, before=fence)

Where lines are alike each has a name, and there must be as many lines as names; where names would say no more than a
number, a number of a count that is checked:

    k, v, last_v = waits.named("K", "V", "the last V").values()            waits.of(4).number(1)

A place that has no line, or several where one is meant, raises PlantingError: no other defect is planted instead.
attention_places.py has the places of the attention kernel, by role and mbarrier.

    section      lines of an attention kernel                ends at
    prologue     mbarrier.init, tcgen05.alloc                setmaxnreg.inc
    softmax      scores to probabilities, row sums           setmaxnreg.dec
    correction   rescale, output                             setmaxnreg.dec
    mma          products                                    last tcgen05.commit
    load         copies, claims                              last bar.sync
    epilogue     deallocation
    kernel       everything

A kernel without setmaxnreg (mhaswap) has the sections prologue, softmax, mma, load and epilogue: softmax begins after
griddepcontrol.wait and ends with the arrival after its last store, mma with the arrival after its last commit. One
with setmaxnreg and without correction (mla_widen) has mma after softmax.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass

WAIT = r"mbarrier\.try_wait\.parity\S* P1, (\[\S+\]), (\S+), (\d+);"
ALWAYS_TRUE = "setp.eq.u32 P1, 0, 0;"
FLIPPED_PARITY = (
    r".reg .b32 flipped; xor.b32 flipped, \2, 1; "
    r"mbarrier.try_wait.parity.shared.b64 P1, \1, flipped, \3;"
)
PARITY_0 = r"mbarrier.try_wait.parity.shared.b64 P1, \1, 0, \3;"


class PlantingError(AssertionError):
    """The PTX has no such place."""


def with_text(text: str, old: str, new: str, of: str) -> str:
    """The text with `new` in the place of `old`, which it has once. of: whose text it is, for the message."""
    if text.count(old) != 1:
        raise PlantingError(f"{of} has {text.count(old)} times {old!r}")
    return text.replace(old, new)


# --- where


@dataclass(frozen=True)
class Place:
    """Lines of a kernel: which() of its lines, in the order of the text; they all match pattern.

    words say the place in messages.
    """

    words: str
    pattern: str
    which: Callable[[list[str]], list[int]]

    def find(self, text: list[str]) -> list[int]:
        """The numbers of the lines; PlantingError if there is none."""
        found = self.which(text)
        if not found:
            raise PlantingError(f"the kernel has no {self.words}; say where it is now")
        return found

    def find_one(self, text: list[str]) -> int:
        """The number of the only line."""
        found = self.find(text)
        if len(found) > 1:
            raise PlantingError(f"the kernel has {len(found)} {self.words}; say which is meant")
        return found[0]

    @property
    def first(self) -> Place:
        return self._picked("the first", lambda found: found[:1])

    @property
    def last(self) -> Place:
        return self._picked("the last", lambda found: found[-1:])

    def of(self, count: int) -> Counted:
        """The same lines, which are so many: where a number says which is meant, it means another one otherwise."""

        def which(text):
            found = self.find(text)
            if len(found) != count:
                raise PlantingError(f"the kernel has {len(found)} {self.words}, not {count}")
            return found

        return Counted(self.words, self.pattern, which)

    def named(self, *names: str) -> dict[str, Place]:
        """Name -> line, in the order of the text. There are as many lines as names."""
        if len(set(names)) != len(names):
            raise ValueError(f"names of {self.words}: {names}; accepted: names that differ")
        counted = self.of(len(names))
        return {
            name: dataclasses.replace(counted.number(n), words=f"{self.words}: {name}")
            for n, name in enumerate(names)
        }

    @property
    def middle(self) -> Place:
        """One that is neither the first nor the last of three or more."""
        return self._picked(
            "the one in the middle of", lambda found: found[len(found) // 2 :][: len(found) > 2]
        )

    def after(self, other: Place) -> Place:
        """Those after a single line."""
        return self._where(f"after {other.words}", lambda n, at: n > at, other)

    def ahead_of(self, other: Place) -> Place:
        """Those ahead of a single line."""
        return self._where(f"ahead of {other.words}", lambda n, at: n < at, other)

    def between(self, begin: Place, end: Place) -> Place:
        """Those after one single line and before another."""
        return self.after(begin).ahead_of(end)

    def that(self, pattern: str) -> Place:
        """Those that match a second pattern, which is the one to replace from here on."""
        return Place(
            f"{self.words} that match {pattern!r}",
            pattern,
            lambda text: [n for n in self.which(text) if re.search(pattern, text[n])],
        )

    def _picked(self, words, pick):
        return Place(f"{words} {self.words}", self.pattern, lambda text: pick(self.find(text)))

    def _where(self, words, keep, other):
        def which(text):
            at = other.find_one(text)
            return [n for n in self.which(text) if keep(n, at)]

        return Place(f"{self.words} {words}", self.pattern, which)


class Counted(Place):
    """Lines of which there are as many as was said."""

    def number(self, n: int) -> Place:
        """The one with this number, from 0 on."""
        return self._picked(f"number {n} of", lambda found: found[n : n + 1])


def lines(role: str, pattern: str, words: str = "") -> Place:
    """Every line of a role (or of another section) that matches."""

    def which(text):
        begin, end = section(text, role)
        return [n for n in range(begin, end) if re.search(pattern, text[n])]

    return Place(words or f"{pattern!r} of {role}", pattern, which)


def section(text: list[str], name: str) -> tuple[int, int]:
    """(first line, end) of a section."""
    if name == "kernel":
        return 0, len(text)
    if not any("setmaxnreg" in line for line in text):
        return _without_correction(text)[name]
    softmax = _first(text, r"setmaxnreg\.inc")
    correction = _first(text, r"setmaxnreg\.dec", softmax)
    decreases = [i for i, line in enumerate(text) if "setmaxnreg.dec" in line]
    mma = next((i for i in decreases if i > correction), len(text))
    load = max(i for i, line in enumerate(text) if "tcgen05.commit" in line) + 1
    last_sync = max(i for i, line in enumerate(text) if re.search(r"bar\.sync\s+0;", line))
    if load <= mma:  # there is no correction: the warps after mma and load dequantize
        mma = correction
    bounds = {
        "prologue": (0, softmax),
        "softmax": (softmax, correction),
        "correction": (correction, mma),
        "mma": (mma, load),
        "load": (load, last_sync),
        "epilogue": (last_sync, len(text)),
    }
    return bounds[name]


def _without_correction(text: list[str]) -> dict[str, tuple[int, int]]:
    softmax = _first(text, r"griddepcontrol\.wait") + 1
    last_store = max(i for i, line in enumerate(text) if "st.global" in line)
    mma = _first(text, r"mbarrier\.arrive", last_store) + 1
    last_commit = max(i for i, line in enumerate(text) if "tcgen05.commit" in line)
    load = _first(text, r"mbarrier\.arrive", last_commit + 1) + 1
    last_sync = max(i for i, line in enumerate(text) if re.search(r"bar\.sync\s+0;", line))
    return {
        "prologue": (0, softmax),
        "softmax": (softmax, mma),
        "mma": (mma, load),
        "load": (load, last_sync),
        "epilogue": (last_sync, len(text)),
    }


def _first(text, pattern, start=0):
    for i in range(start, len(text)):
        if re.search(pattern, text[i]):
            return i
    raise PlantingError(f"no line matches {pattern!r}")


# --- what


def replace(place: Place, by):
    """Edit: substitute in every line of a place. by: as for re.sub."""

    def edit(ptx):
        text = ptx.split("\n")
        for number in place.find(text):
            changed = re.sub(place.pattern, by, text[number], count=1)
            if changed == text[number]:
                raise PlantingError(f"{place.words}: {by!r} changes nothing")
            text[number] = changed
        return "\n".join(text)

    return edit


def delete(place: Place):
    """Edit: drop the statements of a place."""
    return replace(place, "")


def move(place: Place, before: Place, by: str | None = None):
    """Edit: move a line to before another one, rewritten to ``by`` if given."""

    def edit(ptx):
        text = ptx.split("\n")
        source, target = place.find_one(text), before.find_one(text)
        if target in (source, source + 1):
            raise PlantingError(f"{place.words} is there already")
        line = text.pop(source)
        line = line if by is None else re.sub(place.pattern, by, line)
        text.insert(target - (source < target), line)
        return "\n".join(text)

    return edit


def retarget(place: Place, like: Place):
    """Edit: give the lines of a place the group 1 of another line."""

    def edit(ptx):
        text = ptx.split("\n")
        wanted = re.search(like.pattern, text[like.find_one(text)])[1]
        for number in place.find(text):
            line = text[number]
            begin, end = re.search(place.pattern, line).span(1)
            if line[begin:end] == wanted:
                raise PlantingError(f"{place.words} has {wanted} already")
            text[number] = line[:begin] + wanted + line[end:]
        return "\n".join(text)

    return edit


def exchange(one: Place, other: Place):
    """Edit: two lines exchange their group 1."""

    def edit(ptx):
        text = ptx.split("\n")
        numbers = [place.find_one(text) for place in (one, other)]
        found = [
            re.search(place.pattern, text[n])
            for place, n in zip((one, other), numbers, strict=True)
        ]
        if found[0][1] == found[1][1]:
            raise PlantingError(f"{one.words} and {other.words} have {found[0][1]} both")
        for number, mine, theirs in zip(numbers, found, found[::-1], strict=True):
            begin, end = mine.span(1)
            text[number] = text[number][:begin] + theirs[1] + text[number][end:]
        return "\n".join(text)

    return edit


def both(*edits):
    """Edit: several, one after the other."""

    def edit(ptx):
        for one in edits:
            ptx = one(ptx)
        return ptx

    return edit
