"""Power: the clock of a long run follows from the limit of the device, and its speed from that clock.

    power of a run = idle + energy of a FLOP x FLOPs a second
    energy of a FLOP = e(dtype of the MMAs, forward or backward) x (clock / 1.9 GHz)^a

Cycles do not depend on the clock, so the speed is proportional to it. At a limit P, with the burst speed B at the boost
clock b, the run takes the clock at which its power is P:

    speed = min(B, (B^a (P - idle) / (e (b / 1.9)^a))^(1 / (1 + a)))

e and a are fitted to one half of the published rows of long runs (published_power.toml); the other half checks them.

    python -m benchmarks.cycle_model.power     the tables of docs/performance/
"""

from __future__ import annotations

import math
import statistics
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from benchmarks.cycle_model import plots
from benchmarks.cycle_model.kernels import OURS, THEIRS
from cute_fa4.emulator.model.constants import fitted_b200
from cute_fa4.system import toml
from cute_fa4.system.gains import ratio

FILE = Path(__file__).with_name("published_power.toml")
REFERENCE_GHZ = 1.9
FLOPS = {"bf16": 8192, "fp8": 16384, "mxfp8": 16384}  # of an SM and cycle, dense
GEMM_UTILISATION = 0.95  # of a large product of matrices, in a burst: no source has that row
LONG_MS = 45  # of a kernel whose ten launches are long enough for the limit
LIMITS = {"B200": 1000, "GB200": 1200, "GB300": 1400}  # watts of the columns of the tables


@dataclass(frozen=True)
class Chip:
    sms: int
    boost_ghz: float
    source: str

    def peak(self, dtype: str) -> float:
        """TFLOPS of the tensor cores at the boost clock."""
        return self.sms * FLOPS[dtype] * self.boost_ghz / 1e3


@dataclass(frozen=True)
class Row:
    """A published speed. ms: of a kernel. burst: of a short run of the same kernel, 0: there is none."""

    source: str
    device: str
    limit_w: int
    dtype: str
    work: str
    qk: int
    ov: int
    mask: str
    maker: str
    size: str
    ms: float
    burst: float
    tflops: float

    @property
    def burst_speed(self) -> float:
        return self.burst or GEMM_UTILISATION * chips()[self.device].peak(self.dtype)

    @property
    def is_long(self) -> bool:
        """Whether it ran as long as the limit needs; the products of matrices ran thousands of times."""
        return self.work == "gemm" or self.ms >= LONG_MS or "iterations 70" in self.size

    @property
    def what(self) -> str:
        if self.work == "gemm":
            return f"{self.dtype} GEMM"
        depth = f"{self.qk}" if self.qk == self.ov else f"{self.qk}/{self.ov}"
        return f"{self.dtype} {self.work}, d={depth}, {self.mask}"


@dataclass(frozen=True)
class Energies:
    """Picojoules of a FLOP at 1.9 GHz, by dtype. exponent: how it grows with the clock.

    backward: a FLOP of the backward pass, as a factor
    """

    bf16: float
    fp8: float
    mxfp8: float
    backward: float
    exponent: float

    def of_flop(self, dtype: str, work: str) -> float:
        return getattr(self, dtype) * (self.backward if work == "backward" else 1.0)

    def sustained(
        self, burst: float, boost_ghz: float, limit_w: float, dtype: str, work: str = "forward"
    ) -> float:
        """TFLOPS under a limit."""
        per_clock = self.of_flop(dtype, work) * (boost_ghz / REFERENCE_GHZ / burst) ** self.exponent
        limited = ((limit_w - idle_w()) / per_clock) ** (1 / (1 + self.exponent))
        return min(burst, limited)

    def of_row(self, row: Row) -> float:
        boost = chips()[row.device].boost_ghz
        return self.sustained(row.burst_speed, boost, row.limit_w, row.dtype, row.work)


@cache
def published() -> dict:
    return toml.read(FILE)


@cache
def rows() -> tuple[Row, ...]:
    return tuple(Row(**row) for row in published()["rows"])


@cache
def chips() -> dict[str, Chip]:
    return {name: Chip(**chip) for name, chip in published()["chips"].items()}


def idle_w() -> float:
    return published()["constants"]["idle_w"]["value"]


def halves() -> tuple[list[Row], list[Row]]:
    """(those that the energies are fitted to, those that check them): every other long run of each kind."""
    order = sorted(
        (row for row in rows() if row.is_long),
        key=lambda row: (row.work, row.dtype, row.device, row.qk, row.tflops),
    )
    return order[::2], order[1::2]


def errors(energies: Energies, of: list[Row]) -> list[float]:
    """Logarithms of modelled over published speeds."""
    return [math.log(energies.of_row(row) / row.tflops) for row in of]


START = Energies(0.6, 0.35, 0.35, 1.2, 0.4)


@cache
def fitted() -> Energies:
    """The energies with the least squares of errors on the first half: steps along one value at a time."""
    to, best, step = halves()[0], START, 0.3

    def loss(energies: Energies) -> float:
        return sum(error * error for error in errors(energies, to))

    least = loss(best)
    while step > 1e-3:
        before = least
        for name in vars(best):
            for factor in (math.exp(step), math.exp(-step)):
                tried = replace(best, **{name: getattr(best, name) * factor})
                if loss(tried) < least - 1e-12:
                    best, least = tried, loss(tried)
        if least == before:
            step /= 2
    return best


def mean_error(of: list[Row]) -> float:
    return statistics.mean(math.exp(abs(error)) - 1 for error in errors(fitted(), of))


def worst_error(of: list[Row]) -> float:
    return max(math.exp(abs(error)) - 1 for error in errors(fitted(), of))


# --- tables


def fit_table() -> str:
    """The fitted energies, and the errors on both halves and on runs that are too short for the limit."""
    found, (to, check) = fitted(), halves()
    short = [row for row in rows() if not row.is_long]
    lines = ["| | value | |", "|---|---|---|"]
    for dtype in FLOPS:
        n = sum(row.dtype == dtype for row in to)
        value = f"{getattr(found, dtype):.2f} pJ"
        lines.append(f"| a FLOP of {dtype}, at {REFERENCE_GHZ} GHz | {value} | fitted, {n} rows |")
    lines += [
        f"| a FLOP of the backward pass, of one of the forward pass | {found.backward:.2f} | fitted |",
        f"| growth with the clock: exponent | {found.exponent:.2f} | fitted |",
    ]
    constants = published()["constants"]
    idle, read = constants["idle_w"], constants["hbm_read_w"]
    tb_s = 7.3
    lines += [
        f"| idle | {idle['value']} W | {idle['source']} |",
        f"| a byte read from HBM | {(read['value'] - idle['value']) / tb_s:.0f} pJ | {read['source']} |",
    ]
    lines += ["", "| rows | | mean error | worst |", "|---|---|---|---|"]
    binding = [row for row in check if found.of_row(row) < row.burst_speed]
    groups = {
        "fit": to,
        "check": check,
        "check, where the limit lowers the clock": binding,
        "too short for the limit": short,
    }
    for name, of in groups.items():
        lines.append(f"| {name} | {len(of)} | {mean_error(of):.1%} | {worst_error(of):.1%} |")
    return "\n".join(lines)


def check_table() -> str:
    """Every published row beside the model."""
    to, check = halves()
    lines = [
        "| device | limit W | what | kernel | size | burst | published | modelled | error | use |",
        "|" + "---|" * 10,
    ]
    for row in rows():
        modelled = fitted().of_row(row)
        use = "fit" if row in to else "check" if row in check else "too short"
        burst = f"{row.burst:g}" if row.burst else "-"
        where = f"[{row.device}]({published()['sources'][row.source]['url']})"
        cells = [where, row.limit_w, row.what, row.maker, row.size, burst, f"{row.tflops:g}"]
        cells += [f"{modelled:.0f}", f"{modelled / row.tflops - 1:+.1%}", use]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


@dataclass(frozen=True)
class Speed:
    """A kernel on a problem: TFLOPS of an SM and GHz. b300: those of sm_103a code, 0: not known.

    work: "forward" or "backward"
    """

    problem: str
    dtype: str
    maker: str
    basis: str
    of_sm: float
    b300: float = 0.0
    work: str = "forward"

    def on(self, device: str) -> float:
        """Burst TFLOPS on a device; 0: not known."""
        chip = chips()[device]
        of_sm = self.of_sm if device != "GB300" or self.basis == "published" else self.b300
        return of_sm * chip.sms * chip.boost_ghz

    def sustained(self, device: str) -> float:
        burst, chip = self.on(device), chips()[device]
        limit = LIMITS[device]
        return burst and fitted().sustained(burst, chip.boost_ghz, limit, self.dtype, self.work)


def speeds(pages: str) -> list[Speed]:
    """Problems of the pages' modelled tables, and published bursts."""
    clock, sms = (fitted_b200()[name].value for name in ("clock_ghz", "sms"))
    found = []

    def add(problem, dtype, ours, theirs, b300=("", "")):
        for maker, text, of_b300 in zip((OURS, THEIRS), (ours, theirs), b300, strict=True):
            value = float(str(text).strip("*") or 0)
            other = float(of_b300 or 0) / (1.92 * sms)
            found.append(Speed(problem, dtype, maker, "modelled", value / (clock * sms), other))

    b300 = {
        (row["d"], row["mask"].split(",")[0], row["S"]): (row[OURS], row[THEIRS])
        for row in plots.read_table(pages, "b300")
        if "GQA" not in row["mask"]
    }
    for row in plots.read_table(pages, "speeds"):
        mask, key = (
            row["mask"].removesuffix(", pairs"),
            (row["d"], row["mask"].split(",")[0], row["S"]),
        )
        if row["S"] == "16384" and mask in ("full", "causal"):
            name = f"bf16, d={row['d']}, {mask}, 16K"
            add(name, "bf16", row[OURS], row[THEIRS], b300.get(key, ("", "")))
    for row in plots.read_table(pages, "latent"):
        if row["S"] == "32768":
            ours = next(v for v in (row["on pairs"], row["alone"]) if v.startswith("**"))
            add(f"bf16, d=192/128, {row['mask']}, 32K", "bf16", ours, row[THEIRS])
    for row in plots.read_table(pages, "wide"):
        if row["S"] == "32768" and row["mask"] == "causal":
            add("bf16, d=256, causal, 32K", "bf16", row[OURS], row[THEIRS])
    first, _, rest = pages.partition(
        "\n\nCycles of a key tile (256 queries, 128 keys) in the steady state, and"
    )
    for row in plots.read_table(f"{first}\n<!-- /eight_bits -->" if rest else pages, "eight_bits"):
        if row["S"] == "32768":
            add(f"e4m3, d=128, {row['mask']}, 32K", "fp8", row[OURS], row[THEIRS])
    return found + _published_speeds()


def _published_speeds() -> list[Speed]:
    """Bursts of cudnn-frontend's long rows on GB200, one of each kernel and problem."""
    found = {}
    for row in rows():
        if (
            row.device == "GB200"
            and row.burst
            and row.work == "forward"
            and "window" not in row.mask
        ):
            chip, key = chips()[row.device], (row.what, row.maker)
            of_sm = row.burst / (chip.sms * chip.boost_ghz)
            found.setdefault(key, Speed(row.what, row.dtype, row.maker, "published", of_sm))
    return list(found.values())


def speeds_table(pages: str) -> str:
    """Utilisation, burst and sustained speeds; ratios to flash-attn-4 of the same basis."""
    found = speeds(pages)
    theirs = {(s.problem, s.basis): s for s in found if s.maker == THEIRS}
    titles = ["problem", "kernel", "basis", "utilisation", "burst, B200", "ratio"]
    for device, limit in LIMITS.items():
        titles += [f"{limit} W, {device}", "ratio"]
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for speed in found:
        other = theirs.get((speed.problem, speed.basis))
        use = speed.of_sm * 1e3 / FLOPS[speed.dtype]
        cells = [speed.problem, speed.maker, speed.basis, f"{use:.0%}"]
        cells += _cells(speed.on("B200"), other and other.on("B200"), speed.maker)
        for device in LIMITS:
            cells += _cells(speed.sustained(device), other and other.sustained(device), speed.maker)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cells(mine: float, other: float | None, maker: str) -> list[str]:
    if not mine:
        return ["-", ""]
    return [f"{mine:.0f}", ratio(mine / other) if other and maker != THEIRS else ""]


def expectation(pages: str) -> tuple[float, float]:
    """Mean modelled ratio to flash-attn-4 at head dim 128 in bf16: in a burst, and at 1000 W on a B200."""
    found = [s for s in speeds(pages) if s.problem.startswith("bf16, d=128,")]
    ours, theirs = ([s for s in found if s.maker == maker] for maker in (OURS, THEIRS))
    pairs = list(zip(ours, theirs, strict=True))
    burst = statistics.mean(a.of_sm / b.of_sm for a, b in pairs)
    return burst, statistics.mean(a.sustained("B200") / b.sustained("B200") for a, b in pairs)


def tables(pages: str) -> dict[str, str]:
    """By the marks of docs/performance/index.md and power.md."""
    return {
        "power_speeds": speeds_table(pages),
        "power_fit": fit_table(),
        "power_check": check_table(),
    }


def main() -> int:
    pages = plots.text_of_pages()
    print(*tables(pages).values(), sep="\n\n")
    print(expectation(pages))
    return 0


if __name__ == "__main__":
    sys.exit(main())
