"""The text of a deadlock: what each warp waits for, the missing arrivals, and the cycle if there is one.

deadlock in CTA (3, 0, 0) after 41,207 instructions: every warp waits and no copy or MMA is in flight
  warp 12   mma        kv.full[2]   phase 3   lacks 1 of 1 arrivals (load)      mma.py:88
  warp 13   load       kv.empty[2]  phase 2   lacks 1 of 1 arrivals (mma)       load.py:61
  warp 0-3  softmax 0  s_ready[0]   phase 5   lacks 1 of 1 arrivals (mma)       key_tile.py:38
cycle: mma waits for load on kv.full[2]; load waits for mma on kv.empty[2]
kv.full[2], phase 3, lacks 8192 bytes; in this phase:
  expects 16384 bytes    load    load.py:61    barriers.expect(kv.full[slot], KV_BYTES)
  1 arrival              load    load.py:61    barriers.expect(kv.full[slot], KV_BYTES)
  8192 bytes came        load    load.py:64    copy(k, sK[slot], kv.full[slot])
"""

from collections import Counter

from cute_fa4.emulator.machine import polls
from cute_fa4.emulator.ptx.syntax import place, source_text

_MOST_BARRIERS = 8
"""Barriers whose events a report lists: more than one cycle of roles can block."""

_MOST_ROWS = 40
"""Waits that a report lists: those of the warps of a cluster, and of some others."""

_MOST_EVENTS = 12
"""Different events that it lists per barrier: a phase has a few copies, and arrivals of a few roles."""


def deadlock_report(warps, program, instructions, reason=None):
    """(text, True if all waits are lanes of a warp that wait for each other).

    warps   the warps that have not finished
    reason  replaces "every warp waits and no copy or MMA is in flight"
    """
    rows = [row for warp in warps for row in _rows(warp, program)]
    ctas = {row["cta"] for row in rows}
    where = f" in CTA {next(iter(ctas))}" if len(ctas) == 1 else ""
    title = "stopped" if reason else "deadlock"
    reason = reason or "every warp waits and no copy or MMA is in flight"
    lines = [f"{title}{where} after {instructions:,} instructions: {reason}"]
    shown = _merge(rows)
    lines += _table(shown[:_MOST_ROWS], show_cta=len(ctas) > 1)
    lines += [f"  and {len(shown) - _MOST_ROWS} more"] * (len(shown) > _MOST_ROWS)
    cycle = _cycle(rows)
    if cycle:
        lines.append(f"cycle: {cycle}")
    short = {id(row["barrier"]): row["barrier"] for row in rows if row["barrier"] is not None}
    for barrier in list(short.values())[:_MOST_BARRIERS]:
        parities = {row["parity"] for row in rows if row["barrier"] is barrier} - {None}
        lines += phase_report(barrier, parities)
    lines += _spins(warps)
    return "\n".join(lines), bool(rows) and all(row["converge"] for row in rows)


def _spins(warps):
    """A line for each address of global memory that warps spin on: its value, and its last writer."""
    found = {poll.address: (warp, poll) for warp in warps for poll in polls.of(warp)}
    lines = [
        f"global 0x{address:x}{_of_tensor(warp, address)} holds {poll.value:#x}, {_last_writer(warp, poll)}"
        for address, (warp, poll) in list(found.items())[:_MOST_BARRIERS]
    ]
    more = len(found) - len(lines)
    return lines + ([f"and {more} more addresses"] if more > 0 else [])


def _of_tensor(warp, address):
    """Where an address lies in a tensor, as " (byte 8 of its name)"."""
    memory = warp.cta.machine.memory
    found = (a for a in memory.allocations if a.start <= address < a.end)
    return next((f" (byte {address - a.start} of {a.name})" for a in found), "")


def _last_writer(warp, poll):
    order = warp.cta.machine.ordering
    if order is None:
        return "and nobody knows who wrote it last: checks='ptx' or 'hardware' notes that"
    access = order.global_regions.last_write(order, poll.address, max(poll.nbytes, 1))
    if access is None:
        return "which nobody has written in this launch"
    return f"written last by\n{access.where()}"


def phase_report(barrier, parities=()):
    """Lines: the pending arrivals and bytes of an mbarrier, and all events of its open phase, with lines and bytes.

    parities  the parities that waits for the phase have
    """
    head = f"{barrier.name}, phase {barrier.phase}, {barrier.lacks()}"
    if parities:
        head += f"; awaited with parity {' and '.join(map(str, sorted(parities)))}"
    if barrier.events:
        return [f"{head}; in this phase:", *events_table(barrier.events)]
    if barrier.previous:
        return [
            f"{head}; nothing came in this phase, and in phase {barrier.phase - 1}:",
            *events_table(barrier.previous),
        ]
    fresh = ": of the first phase; a wait for parity 1 passes at once before it"
    return [f"{head}{fresh if 0 in parities else ''}; nothing has ever come"]


def events_table(events):
    """A table of events; events of one instruction with the same amount are one row."""
    counts = Counter()
    for what, amount, issuer in events:
        ins = None if issuer is None else issuer.ins
        who = "somebody" if issuer is None else issuer.who()
        counts[what, amount, who, ins] += 1
    rows = []
    for (what, amount, who, ins), times in counts.items():
        text = {
            "arrive": f"{amount * times} arrival{'s' * (amount * times > 1)}",
            "expect_tx": f"expects {amount} bytes",
            "complete_tx": f"{amount} bytes came",
        }[what]
        if times > 1 and what != "arrive":
            text += f", {times} times: {amount * times}"
        source = None if ins is None else ins.role_source or ins.source
        at = place(source) if source else f"PTX line {ins.line}" if ins is not None else ""
        rows.append((text, who, at, source_text(source) or (ins.text if ins is not None else "")))
    more = len(rows) - _MOST_EVENTS
    widths = [max(len(row[i]) for row in rows[:_MOST_EVENTS]) for i in range(4)]
    lines = [
        "  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in rows[:_MOST_EVENTS]
    ]
    return lines + ([f"  and {more} more"] if more > 0 else [])


def _rows(warp, program):
    for group in warp.groups:
        wait = group.wait
        ins = wait.ins if wait is not None else None
        if ins is None:
            members = program.members[group.pc]
            ins = members[0] if members else None
        barrier = wait.barrier if wait is not None else None
        source = None if ins is None else ins.role_source or ins.source
        if wait is None:
            spins = polls.of(warp)
            what, phase, lacks = polls.text(spins[-1]) if spins else "runs", "", ""
        elif barrier is not None:
            what, phase, lacks = barrier.name, f"phase {barrier.phase}", barrier.lacks()
        else:
            what, phase, lacks = wait.what() if callable(wait.what) else wait.what, "", ""
        lanes = "" if len(warp.groups) == 1 else f" lanes 0x{group.mask:08x}"
        yield {
            "cta": warp.cta.id,
            "warp": warp.index,
            "lanes": lanes,
            "role": warp.role,
            "what": what,
            "phase": phase,
            "lacks": lacks,
            "source": place(source) if source else f"PTX line {ins.line}" if ins else "",
            "converge": wait is not None and bool(wait.required),
            "barrier": barrier,
            "parity": wait.parity if barrier is not None and ".parity" in ins.opcode else None,
            "raised_by": barrier.raised_by() if barrier is not None else (),
        }


def _merge(rows):
    """Merge rows of neighboring warps that differ only in the warp number."""
    merged = []
    for row in rows:
        last = merged[-1] if merged else None
        same = last is not None and all(
            last[key] == row[key]
            for key in ("cta", "lanes", "role", "what", "phase", "lacks", "source")
        )
        if same and row["warp"] == last["last"] + 1:
            last["last"] = row["warp"]
        else:
            merged.append({**row, "last": row["warp"]})
    return merged


def _table(rows, show_cta):
    cells = []
    for row in rows:
        warp = (
            f"warp {row['warp']}"
            if row["warp"] == row["last"]
            else f"warp {row['warp']}-{row['last']}"
        )
        cta = f"CTA {row['cta']} " if show_cta else ""
        cells.append(
            (
                cta + warp + row["lanes"],
                row["role"],
                row["what"],
                row["phase"],
                row["lacks"],
                row["source"],
            )
        )
    widths = [max((len(row[i]) for row in cells), default=0) for i in range(6)]
    return [
        "  " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True) if w).rstrip()
        for row in cells
    ]


def _cycle(rows):
    """ "a waits for b on x; b waits for a on y", or "" if the names form no cycle."""
    edges = {}
    waiting = {row["role"] or f"warp {row['warp']}" for row in rows}
    for row in rows:
        me = row["role"] or f"warp {row['warp']}"
        for other in row["raised_by"]:
            if other in waiting:
                edges.setdefault(me, []).append((other, row["what"]))
    for start in edges:
        path, seen, at = [], set(), start
        while at in edges and at not in seen:
            seen.add(at)
            other, what = edges[at][0]
            path.append((at, other, what))
            at = other
        if at == start:
            return "; ".join(f"{a} waits for {b} on {what}" for a, b, what in path)
    return ""
