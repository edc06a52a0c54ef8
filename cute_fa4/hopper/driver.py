"""The host library of exported kernels (aot/cuda_runtime.c) on a real CUDA driver.

The append kernel has no tensor core instruction. Compiled for sm_90a, it is exported, loaded and launched on a
Hopper GPU exactly like attention on a Blackwell GPU. Each case (driver_cases.py) runs in a separate process and
returns a text; `expect` must be part of it.

    python -m cute_fa4 hopper driver DIR       after `hopper build`, which exports the kernels to DIR/append
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import torch

from cute_fa4.hopper.driver_calls import FOLDER, Functions
from cute_fa4.hopper.driver_cases import CASES, Case
from cute_fa4.hopper.report import verdict

SECONDS = 120


def run(directory) -> list[dict]:
    """Run every case that the machine has enough GPUs for, each in a separate process: {name, seen, ok, seconds}."""
    rows = []
    for one in CASES:
        if one.gpus <= torch.cuda.device_count():
            rows.append(run_one(one, directory))
    return rows


def run_one(one: Case, directory) -> dict:
    command = [sys.executable, "-m", __spec__.name if __name__ == "__main__" else __name__]
    begin = time.perf_counter()
    try:
        done = subprocess.run(
            [*command, one.name, str(directory)], capture_output=True, text=True, timeout=SECONDS
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("seen: ")]
        seen = lines[-1].removeprefix("seen: ") if lines else done.stderr.strip()[-500:]
        good = done.returncode == 0 and bool(lines) and one.expect in seen
        seen += f" (exit status {done.returncode})" * (done.returncode != 0)
    except subprocess.TimeoutExpired:
        seen, good = f"no end within {SECONDS} s", False
    return dict(name=one.name, seen=seen, ok=good, seconds=time.perf_counter() - begin)


def main() -> None:
    """python -m cute_fa4.hopper.driver CASE DIR: one case."""
    name, directory = sys.argv[1:3]
    (one,) = [c for c in CASES if c.name == name]
    print("seen:", one.run(Functions(Path(directory) / FOLDER)).replace("\n", " "), flush=True)


def table(rows: list[dict]) -> str:
    """Markdown."""
    lines = ["| case | seen |", "|---|---|"]
    return "\n".join(lines + [f"| {row['name']} | {verdict(row)} |" for row in rows])


if __name__ == "__main__":
    if len(sys.argv) == 2:
        print(json.dumps(run(sys.argv[1]), indent=1))
    else:
        main()
