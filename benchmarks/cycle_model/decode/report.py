"""Tables of decode for docs/performance/decode.md and decode_method.md."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean

from benchmarks.cycle_model.decode import problems as calls
from benchmarks.cycle_model.decode.check import IN_CLUSTER, Check, Row
from benchmarks.cycle_model.decode.problems import DecodeProblem, published
from benchmarks.cycle_model.decode.time import CallTime, Source, ours, theirs
from benchmarks.cycle_model.modelled import NAN, marked
from cute_fa4.emulator.model.constants import Constant
from cute_fa4.system.gains import ratio

# The goals of the table.
FASTER_THAN_THEIRS = 1.2
LARGE_TB_S = 7.0
RAGGED_OVER_EVEN = 1.1
DOUBT_US = (
    1.0  # additional time that the start of a kernel may take, docs/performance/decode_method.md
)


@dataclass(frozen=True)
class TableRow:
    """One problem: ours, flash-attn-4's with keys split and not, and the fastest published time, if there is one."""

    problem: DecodeProblem
    ours: CallTime
    split: CallTime
    whole: CallTime
    published: float | None
    by: str

    @property
    def over_theirs(self) -> float:
        return min(self.split.us, self.whole.us) / self.ours.us

    @property
    def over_published(self) -> float | None:
        return self.published and self.published / self.ours.us


def rows(constants: dict[str, Constant], source: Source, say=lambda row: None) -> list[TableRow]:
    """Every problem; say(row) is called for each."""
    found = []
    for problem in calls.problems():
        times = published(problem)
        by = min(times, key=times.__getitem__) if times else ""
        split, whole = (theirs(problem, constants, split, source) for split in (True, False))
        mine = ours(problem, constants, source=source)
        row = TableRow(problem, mine, split, whole, times.get(by), by)
        found.append(row)
        say(row)
    return found


def table(found: list[TableRow]) -> str:
    """Modelled times beside published ones."""
    lines = [
        "Microseconds of a decode on a B200, **modelled**, of cute_fa4 from pages of 16 keys, with as many "
        "parts as it chooses, and of flash-attn-4 from pages of 128, its best case, with keys split and "
        "not; bf16. Published: the faster of trtllm-gen and FlashInfer's cute-dsl, measured by others, "
        "from pages of 16. q: queries of a sequence; ends: start and end, the rest but merging is reading; "
        "over: the speed of cute_fa4 over that of flash-attn-4 (FA4), and over the published one.",
        "",
        "| d | heads | q | batch | keys | cute_fa4 | TB/s | parts | ends | merges | bound by "
        "| FA4 split | whole | published | over FA4 | over it |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found:
        p, mine = row.problem, row.ours
        cells = [p.head_dim, f"{p.heads_q}/{p.heads_kv}", p.seqlen_q, p.batch, _keys(p)]
        cells += [marked(_us(mine.us), mine, row.split, row.whole)]
        cells += [f"{mine.tb_s(p):.2f}", mine.parts]
        cells += [_us(mine.set_up_us), _us(mine.merge_us), mine.bound]
        cells += [_us(row.split.us), _us(row.whole.us)]
        cells += ["", ratio(row.over_theirs), ""]
        if row.published:
            cells[-3], cells[-1] = (
                f"{_us(row.published)} ({row.by.removeprefix('FlashInfer ')})",
                ratio(row.over_published),
            )
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join([*lines, "", *_goals(found)])


# CallTime.bound -> the bound of a row, and what would change it.
BINDS = {
    "set-up": "what comes before and after the keys: start, prologue, one key tile after the other, epilogue",
    "merge": "merging the parts",
    "bandwidth": "memory: while CTAs read it gives {share:.0%} of its ceiling; at the ceiling, with nothing besides, "
    "the row would take {least} us",
    "latency": "bytes in flight: too few to fill memory",
    "work": "what an SM copies, 48 bytes a cycle, or what its warps do for a key tile",
    "tail": "SMs without work",
}


def short_table(found: list[TableRow], constants: dict[str, Constant]) -> str:
    """Every row that misses a goal, where its time goes, and what binds it."""
    ceiling = constants["hbm_tbs"].value
    lines = [
        "Rows of the table above that are slower than the fastest published time, or less than "
        f"{FASTER_THAN_THEIRS} times as fast as flash-attn-4; microseconds, modelled. Start: until the first "
        "instruction, and what first copies take besides the latency. Ends: prologue, epilogue, SMs without work.",
        "",
        "| d | heads | q | batch | keys | slower than published by | over FA4 | start | ends | reading | at TB/s "
        "| merging | bound by |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found:
        p, mine = row.problem, row.ours
        late = row.published is not None and not mine.us <= row.published
        if not late and row.over_theirs >= FASTER_THAN_THEIRS:
            continue
        least = _us(p.bytes / ceiling * 1e-6)
        binds = BINDS.get(mine.bound, "-").format(share=mine.reading / ceiling, least=least)
        cells = [p.head_dim, f"{p.heads_q}/{p.heads_kv}", p.seqlen_q, p.batch, _keys(p)]
        by = f"{mine.us - row.published:.1f}" if late else ""
        cells += [marked(by, mine, row.split, row.whole), ratio(row.over_theirs)]
        cells += [f"{mine.start_us:.1f}", f"{mine.set_up_us - mine.start_us:.1f}"]
        cells += [_us(mine.stream_us), f"{mine.reading:.1f}", f"{mine.merge_us:.1f}", binds]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def _goals(found: list[TableRow]) -> list[str]:
    known = [row for row in found if row.published]
    missing = any(time.state == "missing" for row in found for time in (row.ours, row.split))

    def count(rows) -> float:
        return NAN if missing else sum(rows)

    reached = count(row.over_published >= 1 for row in known)
    doubted = count(row.published >= row.ours.us + DOUBT_US for row in known)
    faster = count(row.over_theirs >= FASTER_THAN_THEIRS for row in found)
    large = [
        row.ours.tb_s(row.problem)
        for row in known
        if row.problem.batch == 64 and row.problem.lengths[0] >= 4096
    ]
    ragged, even = found[-2].ours, found[-1].ours
    return [
        f"At least as fast as the fastest published: {reached} of {len(known)} rows. At least "
        f"{FASTER_THAN_THEIRS} times as fast as flash-attn-4: {faster} of {len(found)}. Batches of 64 with "
        f"4K keys and more: {min(large):.1f} to {max(large):.1f} TB/s, wanted {LARGE_TB_S:.1f}. The ragged "
        f"batch takes {ragged.us / even.us:.2f} of the time of the even one with the same bytes, wanted "
        f"{RAGGED_OVER_EVEN}. If every call took {DOUBT_US:g} us more than the model says, "
        f"{doubted} of the {len(known)} rows would reach the published time.",
    ]


def _keys(problem: DecodeProblem) -> str:
    lengths = problem.lengths
    if problem.is_even:
        return str(lengths[0])
    return f"{max(lengths)}, and {len(lengths) - 1} of {min(lengths)}"


def _us(us: float) -> str:
    return f"{us:.1f}" if us < 100 else f"{us:.0f}"


def check_table(check: Check) -> str:
    """Every row that the H200 measured, the mean and the largest error of those that gave no constant."""
    lines = [
        "| what | measured | modelled | error | |",
        "|---|---|---|---|---|",
    ]
    found = [*check.streams(), *check.decodes()]
    for row in found:
        note = "constants" if row.used else "" if row.explained else "not explained"
        measured, modelled = (f"{x:.2f} {row.unit}" for x in (row.measured, row.modelled))
        lines.append(f"| {row.what} | {measured} | {modelled} | {row.error:+.1%} | {note} |")
    return "\n".join([*lines, "", _errors(check, found)])


def _errors(check: Check, found: list[Row]) -> str:
    counted = [abs(row.error) for row in found if not row.used and row.explained]
    others = [row for row in found if not row.explained]
    apart = max(abs(row.error) for row in others)
    return (
        f"Measured on an {check.device}, {check.date}. {len(counted)} rows that gave no constant: mean error "
        f"{mean(counted):.1%}, largest {max(counted):.1%}; {len(others)} rows that are not explained: largest "
        f"{apart:.1%}."
    )


def merging_table(check: Check) -> str:
    """What merging adds to a launch, by how it is done: measured on an H200."""
    lines = [
        "| batch | parts | second launch | dependent launch | last CTA of a row | cluster: loads "
        "| all at once | stores | bulk copies | st.async |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for batch, parts, costs in check.merging():
        cells = [
            f"{costs[how]:.2f}" if how in costs else "-"
            for how in ("kernel", "dependent", "last", *IN_CLUSTER)
        ]
        lines.append("| " + " | ".join([str(batch), str(parts), *cells]) + " |")
    return "\n".join(
        [
            *lines,
            "",
            f"Microseconds, measured on an {check.device}, {check.date}, 64 query heads, d=128.",
        ]
    )
