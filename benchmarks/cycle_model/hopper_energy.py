"""Energy of single operations on a Hopper GPU, from the power that benchmarks/hopper_energy.cu measures.

    ./hopper_energy > run.jsonl                                          # on the GPU, twice or more
    python -m benchmarks.cycle_model.hopper_energy run.jsonl ...         # writes hopper_energy.json

A kernel that does one thing on all SMs draws the power of an SM that sleeps, and an energy for each operation.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

DATA = Path(__file__).parent / "hopper_energy.json"
ASLEEP = "threads asleep"
# A row whose kernel does more than what it is named for: operations of other rows for each of its own.
BESIDE = {"EX2 and two LOP3": ("EX2", {"LOP3": 2})}
ONE = {
    "operations": "an operation",
    "bytes": "a byte",
    "FLOPs": "a FLOP",
    "polls of threads": "a poll of a thread",
}


def load() -> list[dict]:
    return json.loads(DATA.read_text())


def energies(rows: list[dict]) -> dict[str, float]:
    """Picojoules for each operation, by the name of the row."""
    asleep = next(row["watts"] for row in rows if row["what"] == ASLEEP)
    found: dict[str, float] = {}
    for row in rows:
        if not row["per_second"]:
            continue
        picojoules = (row["watts"] - asleep) / row["per_second"] * 1e12
        name, others = BESIDE.get(row["what"], (row["what"], {}))
        found[name] = picojoules - sum(count * found[other] for other, count in others.items())
    return found


def table() -> str:
    rows = load()
    of = energies(rows)
    lines = ["| what all SMs do | power | clock | a second | energy |", "|---|---|---|---|---|"]
    for row in rows:
        name = BESIDE.get(row["what"], (row["what"], {}))[0]
        rate = f"{row['per_second']:.3g} {row['unit']}" if row["per_second"] else "-"
        # A wait that is suspended does nothing that could be counted.
        counted = name in of and row["watts"] > rows[0]["watts"] + 5
        energy = (
            f"{of[name]:.3g} pJ {ONE[row['unit']]}" + (f" ({name})" if name != row["what"] else "")
            if counted
            else "-"
        )
        lines.append(
            f"| {row['what']} | {row['watts']:.0f} W | {row['mhz']:.0f} MHz | {rate} | {energy} |"
        )
    return "\n".join(lines)


def mean_of_runs(runs: list[list[dict]]) -> list[dict]:
    mean = []
    for same in zip(*runs, strict=True):
        numbers = {
            key: float(f"{statistics.mean(row[key] for row in same):.4g}")
            for key in ("watts", "mhz", "per_second")
        }
        mean.append(same[0] | numbers)
    return mean


def main(paths: list[str]) -> int:
    runs = [[json.loads(line) for line in Path(path).read_text().splitlines()] for path in paths]
    rows = mean_of_runs(runs)
    DATA.write_text("[\n" + ",\n".join("  " + json.dumps(row) for row in rows) + "\n]\n")
    print(table())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
