"""Edits of PTX text that say where they apply and how often they must: a defect is planted exactly as meant.

    replace("mma", MMA, by, nth=7, of=40)               in section "mma", the 8th of exactly 40 matches
    replace("mma", WAIT, by, 1, 2, on=231640)           the 2nd of exactly 2 that name the mbarrier at this byte
    delete(behind("mma", WAIT, on=231640), FENCE, FIRST, ANY)       the first one behind a line
    delete(ahead_of("mma", ARRIVE, on=231640), FENCE, LAST, ANY)    the last one ahead of a line

A kernel that has changed since makes an edit raise PlantingError instead of planting another defect.

    section      lines of an attention kernel                ends at
    prologue     mbarrier.init, tcgen05.alloc                setmaxnreg.inc
    softmax      scores to probabilities, row sums           setmaxnreg.dec
    correction   rescale, output                             setmaxnreg.dec
    mma          products                                    last tcgen05.commit
    load         copies, claims                              last bar.sync
    epilogue     deallocation
    kernel       everything
"""

import re

WAIT = r"mbarrier\.try_wait\.parity\S* P1, (\[\S+\]), (\S+), (\d+);"
ALWAYS_TRUE = "setp.eq.u32 P1, 0, 0;"
FLIPPED_PARITY = (
    r".reg .b32 flipped; xor.b32 flipped, \2, 1; "
    r"mbarrier.try_wait.parity.shared.b64 P1, \1, flipped, \3;"
)
PARITY_0 = r"mbarrier.try_wait.parity.shared.b64 P1, \1, 0, \3;"


FIRST, LAST, ANY = 0, -1, None


class PlantingError(AssertionError):
    """The PTX is not what an edit was written for."""


def _first(lines, pattern, start=0):
    for i in range(start, len(lines)):
        if re.search(pattern, lines[i]):
            return i
    raise PlantingError(f"no line matches {pattern!r}")


def section(lines, name):
    """(first line, end) of a section; ``name`` may be what behind() or ahead_of() returned."""
    if callable(name):
        return name(lines)
    if name == "kernel":
        return 0, len(lines)
    softmax = _first(lines, r"setmaxnreg\.inc")
    correction = _first(lines, r"setmaxnreg\.dec", softmax)
    mma = _first(lines, r"setmaxnreg\.dec", correction + 1)
    load = max(i for i, line in enumerate(lines) if "tcgen05.commit" in line) + 1
    last_sync = max(i for i, line in enumerate(lines) if re.search(r"bar\.sync\s+0;", line))
    bounds = {
        "prologue": (0, softmax),
        "softmax": (softmax, correction),
        "correction": (correction, mma),
        "mma": (mma, load),
        "load": (load, last_sync),
        "epilogue": (last_sync, len(lines)),
    }
    return bounds[name]


def behind(where, pattern, nth=0, of=1, on=None):
    """The lines of a section behind one of its lines."""

    def bounds(lines):
        return matches(lines, where, pattern, of, on)[nth] + 1, section(lines, where)[1]

    return bounds


def ahead_of(where, pattern, nth=0, of=1, on=None):
    """The lines of a section ahead of one of its lines."""

    def bounds(lines):
        return section(lines, where)[0], matches(lines, where, pattern, of, on)[nth]

    return bounds


def address(lines, number):
    """The byte of dynamic shared memory that the first [operand] of a line names, at index 0 of an array; or None."""
    base, _, offset = re.search(r"\[(\S+?)\]", lines[number])[1].partition("+")
    if offset or not base.startswith("%"):
        return int(offset or 0)
    for line in reversed(lines[:number]):
        if definition := re.match(rf"\s*add\.s32\s+{base}, \S+, (\d+);", line):
            return int(definition[1])
    return None


def matches(lines, where, pattern, of, on=None):
    """Line numbers of a section that match; there must be ``of`` of them. on: only those that name this address."""
    begin, end = section(lines, where)
    found = [i for i in range(begin, end) if re.search(pattern, lines[i])]
    if on is not None:
        found = [i for i in found if address(lines, i) == on]
    if not found if of is ANY else len(found) != of:
        place = f"lines {begin} to {end}" if callable(where) else f"section {where!r}"
        on = "" if on is None else f" on {on}"
        raise PlantingError(
            f"{len(found)} lines of {place} match {pattern!r}{on}; the edit was written for {of or 'some'}"
        )
    return found


def replace(where, pattern, by, nth=0, of=1, on=None):
    """Edit: substitute in the nth of the ``of`` matching lines of a section; nth may be several, or "all"."""

    def edit(ptx):
        lines = ptx.split("\n")
        found = matches(lines, where, pattern, of, on)
        numbers = range(len(found)) if nth == "all" else nth if isinstance(nth, tuple) else (nth,)
        for number in numbers:
            changed = re.sub(pattern, by, lines[found[number]], count=1)
            if changed == lines[found[number]]:
                raise PlantingError(f"{pattern!r} -> {by!r} changes nothing")
            lines[found[number]] = changed
        return "\n".join(lines)

    return edit


def delete(where, pattern, nth=0, of=1, on=None):
    """Edit: drop a statement."""
    return replace(where, pattern, "", nth, of, on)


def move(
    where, pattern, nth, of, before, before_nth=0, before_of=1, by=None, on=None, before_where=None
):
    """Edit: move the nth matching line to before another one, rewritten to ``by`` if given."""

    def edit(ptx):
        lines = ptx.split("\n")
        source = matches(lines, where, pattern, of, on)[nth]
        target = matches(lines, before_where or where, before, before_of)[before_nth]
        line = lines.pop(source)
        lines.insert(target - (source < target), line if by is None else re.sub(pattern, by, line))
        return "\n".join(lines)

    return edit


def retarget(where, pattern, nth, of, like, on=None):
    """Edit: give the nth matches (one or several) the group 1 that match number ``like`` has."""

    def edit(ptx):
        lines = ptx.split("\n")
        found = matches(lines, where, pattern, of, on)
        wanted = re.search(pattern, lines[found[like]])[1]
        for number in nth if isinstance(nth, tuple) else (nth,):
            line = lines[found[number]]
            begin, end = re.search(pattern, line).span(1)
            if line[begin:end] == wanted:
                raise PlantingError(f"match {number} of {pattern!r} has {wanted} already")
            lines[found[number]] = line[:begin] + wanted + line[end:]
        return "\n".join(lines)

    return edit


def exchange(where, pattern, first, second, of):
    """Edit: two matches exchange their group 1."""

    def edit(ptx):
        lines = ptx.split("\n")
        found = matches(lines, where, pattern, of)
        spans = [re.search(pattern, lines[found[n]]) for n in (first, second)]
        for span, other, n in ((spans[0], spans[1], first), (spans[1], spans[0], second)):
            begin, end = span.span(1)
            line = span.string
            lines[found[n]] = line[:begin] + other[1] + line[end:]
        return "\n".join(lines)

    return edit


def both(*edits):
    """Edit: several, one after the other."""

    def edit(ptx):
        for one in edits:
            ptx = one(ptx)
        return ptx

    return edit
