"""Peers beside us on the same calls, published and modelled on a GB200; what kernels spend beside their MMAs.

The calls are those of cudnn-frontend's benchmark (published_power.toml). Speeds of ours and of flash-attn-4 are those
of the pages' tables, for the SMs and the boost clock of a GB200; FROST's kernels are modelled on the calls themselves.
docs/generate.py writes the tables.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.cycle_model import b300, hopper_energy, plots, power
from benchmarks.cycle_model.decode import time as decode_time
from benchmarks.cycle_model.decode.problems import DecodeProblem
from benchmarks.cycle_model.grid import launch_time
from benchmarks.cycle_model.kernels import FROST, OURS, THEIRS, Variant
from benchmarks.cycle_model.modelled import MARK, Model, Modelled, marked
from benchmarks.cycle_model.problems import Problem
from cute_fa4.emulator.model.constants import fitted_b200
from cute_fa4.system.gains import ratio

FILE = Path(__file__).with_name("peers.json")
DEVICE = "GB200"
CUDNN = "cuDNN"
LONG = "32768"


@dataclass(frozen=True)
class Call:
    """A call of the benchmark: its name there, the page's table with its rows, their mask, keys of its short run."""

    what: str
    table: str
    mask: str
    short: str
    problem: Problem

    def row(self, pages: str, seqlen: str) -> dict[str, str]:
        depth = str(self.problem.head_dim)
        return next(
            row
            for row in plots.read_table(pages, self.table)
            if (row["mask"], row["S"], row.get("d", depth)) == (self.mask, seqlen, depth)
        )


def _call(what, table, mask, short, batch, heads, **problem) -> Call:
    heads_q, heads_kv = heads
    found = Problem(batch, heads_q, heads_kv, short, causal=not mask.startswith("full"), **problem)
    return Call(f"bf16 forward, {what}", table, mask, str(short), found)


LLAMA, LATENT = {"head_dim": 128}, {"head_dim": 192, "head_dim_v": 128}
CALLS = (
    _call("d=128, full", "speeds", "full, GQA 8", 8192, 2, (64, 8), **LLAMA),
    _call("d=128, causal", "speeds", "causal, GQA 8", 8192, 2, (64, 8), **LLAMA),
    _call("d=192/128, full", "latent", "full", 8192, 2, (128, 128), **LATENT),
    _call("d=192/128, causal", "latent", "causal", 16384, 2, (128, 128), **LATENT),
    _call("d=256, causal", "wide", "causal", 16384, 1, (32, 2), head_dim=256),
    _call("d=64, window 128", "speeds", "window 128", 8192, 2, (128, 128), head_dim=64, window=128),
)


def published(what: str, maker: str) -> tuple[float, float] | None:
    """(short run, long run) of the benchmark on a GB200; None where it has none."""
    for row in power.rows():
        if (row.what, row.maker, row.device, row.size) == (what, maker, DEVICE, LONG):
            return row.burst, row.tflops
    return None


def load() -> dict:
    """Decodes with published times."""
    return json.loads(FILE.read_text())


def frost(call: Call) -> Variant | None:
    """FROST's kernel for a call; None: the model does not follow it."""
    variant = Variant.of(FROST, call.problem)
    return None if variant.not_modelled else variant


def modelled(call: Call, pages: str, model: Model) -> dict[str, tuple[float, float, str]]:
    """Speeds at the boost clock of a GB200 in the short and the long run, and the state of the kernel, by maker."""
    b200, chip = fitted_b200(), power.chips()[DEVICE]
    scale = chip.sms * chip.boost_ghz / (b200["sms"].value * b200["clock_ghz"].value)
    rows = [call.row(pages, seqlen) for seqlen in (call.short, LONG)]
    found: dict[str, tuple[float, float, str]] = {}
    for maker in (OURS, THEIRS):
        own = ("on pairs", "alone") if maker == OURS and "alone" in rows[0] else (maker,)
        short, long = (
            next((row[name] for name in own if row[name].startswith("**")), row[own[-1]])
            for row in rows
        )
        found[maker] = float(short.strip("*")) * scale, float(long.strip("*")) * scale, ""
    if variant := frost(call):
        kernel = model(variant, b200)
        device = b200 | {
            "sms": replace(b200["sms"], value=chip.sms),
            "clock_ghz": replace(b200["clock_ghz"], value=chip.boost_ghz),
        }
        problems = call.problem, replace(call.problem, seqlen=int(LONG))
        speeds = (launch_time(variant, p, kernel.cycles, device).tflops(p) for p in problems)
        found[FROST] = *speeds, kernel.state
    return found


def limited(burst: float) -> float:
    """TFLOPS of a long run at the power limit of the benchmark's device."""
    boost = power.chips()[DEVICE].boost_ghz
    return power.fitted().sustained(burst, boost, power.LIMITS[DEVICE], "bf16")


def table(pages: str, model: Model) -> str:
    """Every maker on every call; ratios to flash-attn-4 of the same basis."""
    lines = [
        "| call | batch x heads | kernel | basis | keys | burst | ratio | 32K keys | ratio |",
        "|" + "---|" * 9,
    ]
    for call in CALLS:
        p = call.problem
        heads = f"{p.batch} x {p.heads_q}" + f" over {p.heads_kv}" * (p.group > 1)
        speeds = {
            (maker, "modelled"): (short, limited(long), state)
            for maker, (short, long, state) in modelled(call, pages, model).items()
        }
        for maker in (THEIRS, CUDNN, FROST):
            if found := published(call.what, maker):
                speeds[maker, "published"] = *found, ""
        for (maker, basis), mine in speeds.items():
            cells = [call.what, heads, maker, basis, f"{p.seqlen >> 10}K"]
            for speed, other in zip(mine[:2], speeds[THEIRS, basis][:2], strict=True):
                cells += [f"{speed:.0f}", ratio(speed / other) if maker != THEIRS else ""]
            cells[5] += MARK * bool(mine[2])
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


# --- energy


def _kernels() -> list[Variant]:
    """Ours on CTAs alone, where there are such, then flash-attn-4's, of every row: it runs pairs without a mask."""
    plain = [dict(head_dim=d, causal=causal) for d in (64, 128) for causal in (False, True)]
    deep = [dict(head_dim=192, causal=causal, head_dim_v=128) for causal in (False, True)]
    wide = [dict(head_dim=256, causal=causal, group=16) for causal in (False, True)]
    narrow = [dict(head_dim=128, causal=causal, dtype="e4m3") for causal in (False, True)]
    found = []
    for row in (*plain, *deep, *wide, *narrow):
        found.append(Variant(OURS, **row, pairs=row["head_dim"] == 256))
        found.append(Variant(THEIRS, **row))
    return found


KERNELS = _kernels()
ROWS, KEYS = 128, 128  # of a query tile, of a key tile
BYTES = {"bf16": 2, "e4m3": 1}  # of an element of Q, K and V
OPERATIONS = {"mufu": "EX2", "fma": "FFMA", "alu": "LOP3", "convert": "LOP3"}
"""The operation of hopper_energy.json that stands for those of a pipe."""
PARTS = ("exponentials", "other arithmetic", "shared memory", "L2")


def energy(kernel: Modelled) -> list[float]:
    """Picojoules a FLOP in addition to MMAs by PARTS, at what single operations took on an H200.

    Operations follow from the share of the cycles of a key tile in which a pipe is busy. Each query tile reads Q, K and
    V from shared memory, and P from tensor memory; a CTA of a pair holds, loads and reads half of K and V.
    """
    of, constants = hopper_energy.energies(hopper_energy.load()), fitted_b200()
    variant, steady = kernel.variant, kernel.steady
    ctas, size = 2 if variant.pair else 1, BYTES[variant.dtype]
    depths = variant.head_dim + (variant.head_dim_v or variant.head_dim)
    tiles = variant.rows // ROWS // ctas
    flops = 2 * tiles * ROWS * KEYS * depths
    pipes = {
        pipe: steady.cycles * steady.busy[pipe] * constants[f"rate_{pipe}"].value * of[name] / flops
        for pipe, name in OPERATIONS.items()
    }
    loaded = KEYS * depths * size / ctas
    read = tiles * (ROWS * variant.head_dim * size + loaded)
    return [
        pipes.pop("mufu"),
        sum(pipes.values()),
        read * of["shared memory, read"] / flops,
        loaded * of["L2, read"] / flops,
    ]


GEMM_TILE = 256
"""Rows and columns of a product of matrices that two CTAs make, each with half of its rows and half of the columns."""


def gemm_energy() -> list[float]:
    """The same of a product of matrices in 16 bits: each operand comes from L2 and is read once for each tile."""
    of = hopper_energy.energies(hopper_energy.load())
    half = GEMM_TILE // 2
    a_flop = 2 * half * BYTES["bf16"] / (2 * half * GEMM_TILE)
    return [0.0, 0.0, a_flop * of["shared memory, read"], a_flop * of["L2, read"]]


def energy_table(model: Model) -> str:
    """Every kernel, and a product of matrices; how much less than flash-attn-4's."""
    titles = ("kernel", *PARTS, "together", "of flash-attn-4's", "first two, of flash-attn-4's")
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    found = [model(variant, fitted_b200()) for variant in KERNELS]
    gemm = f"product of matrices, tiles of {GEMM_TILE} x {GEMM_TILE}"
    rows: list[tuple] = [(gemm, gemm_energy(), None, ())]
    for mine, theirs in zip(found[::2], found[1::2], strict=True):
        rows.append((mine.variant, energy(mine), energy(theirs), (mine, theirs)))
        rows.append((theirs.variant, energy(theirs), None, (theirs,)))
    for name, parts, theirs, used in rows:
        over = ["", ""]
        if theirs:
            over = [ratio(sum(parts[:n]) / sum(theirs[:n]), "as much") for n in (len(PARTS), 2)]
        cells = [str(name), *(f"{part:.3f}" for part in (*parts, sum(parts))), *over]
        cells[1] = marked(cells[1], *used)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


# --- the tensor core of a B300


def b300_table(pages: str) -> str:
    """Full attention at d=128 on a B300: what is left to the peak, and to a product of matrices at the limit."""
    constants, chip = b300.constants(), power.chips()["GB300"]
    of_sm = constants["sms"].value * constants["clock_ghz"].value
    peak = of_sm * power.FLOPS["bf16"] / 1e3
    rows = [row for row in plots.read_table(pages, "b300") if row["d"] == "128"]
    rows = [row for row in rows if row["mask"].startswith("full")]
    gemm = power.fitted().sustained(
        power.GEMM_UTILISATION * chip.peak("bf16"), chip.boost_ghz, power.LIMITS["GB300"], "bf16"
    )
    lines = [
        "| mask | keys | kernel | of the peak | start and end | steady state | 1400 W | of a product of matrices |",
        "|" + "---|" * 8,
    ]
    for maker in (OURS, THEIRS):
        steady = max(float(row[maker]) for row in rows)
        for row in rows:
            speed = float(row[maker])
            burst = speed / of_sm * chip.sms * chip.boost_ghz
            long = power.fitted().sustained(burst, chip.boost_ghz, power.LIMITS["GB300"], "bf16")
            cells = [
                row["mask"],
                row["S"],
                maker,
                f"{speed / peak:.0%}",
                f"{1 - speed / steady:.0%}",
            ]
            cells += [f"{1 - steady / peak:.0%}", f"{long:.0f}", f"{long / gemm:.2f}"]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


# --- decode


def decode_problems() -> list[DecodeProblem]:
    found = load()["decode"]
    return [
        DecodeProblem.even(row["batch"], row["keys"], found["queries"]) for row in found["rows"]
    ]


def decode_table(source: decode_time.Source) -> str:
    """A decode of eight queries: ours modelled beside cuDNN's published time."""
    found = load()["decode"]
    lines = [
        f"Microseconds of a decode of {found['queries']} queries, {found['heads']} heads, d=128, pages of 16 keys, "
        f"bf16. cuDNN: published, [{found['what']}]({found['url']}). cute_fa4: modelled on a B200.",
        "",
        "| batch | keys | cute_fa4 | TB/s | bound by | cuDNN, published | TB/s |",
        "|" + "---|" * 7,
    ]
    for row, problem in zip(found["rows"], decode_problems(), strict=True):
        mine = decode_time.ours(problem, fitted_b200(), source=source)
        nbytes = DecodeProblem.even(row["batch"], row["keys"]).bytes
        speeds = (f"{nbytes / us * 1e-6:.2f}" for us in (mine.us, row["published_us"]))
        us = marked(f"{mine.us:.1f}", mine)
        cells = [row["batch"], row["keys"], us, next(speeds), mine.bound, row["published_us"]]
        lines.append("| " + " | ".join(map(str, [*cells, next(speeds)])) + " |")
    return "\n".join(lines)


def tables(pages: str, model: Model, source: decode_time.Source) -> dict[str, str]:
    """By the marks of docs/performance/peers.md."""
    return {
        "peers": table(pages, model),
        "peers_energy": energy_table(model),
        "peers_decode": decode_table(source),
        "peers_b300": b300_table(pages),
    }
