"""The process that runs another package on the emulator, for kernels.py: a variant in, machine code and traces out."""

from __future__ import annotations

import argparse
import json
import pickle
from collections.abc import Callable
from pathlib import Path


def main(description: str, record: Callable) -> None:
    """Write what record(variant, arch) returns, (ptx, cubin, traces), to the file that the command names."""
    from benchmarks.cycle_model.kernels import Variant

    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("variant", help="fields of kernels.Variant as JSON")
    parser.add_argument("--arch", default="sm_100a")
    args = parser.parse_args()
    found = record(Variant(**json.loads(args.variant)), args.arch)
    args.out.write_bytes(pickle.dumps(found))
