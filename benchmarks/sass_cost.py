"""SASS instruction counts of the kernel's loops, compared with flash-attn-4's if it is installed.

    python benchmarks/sass_cost.py --causal                       compiles, prints both and the ratio
    python benchmarks/sass_cost.py --cubin kernel.cubin           any cubin with such loops
    python benchmarks/sass_cost.py --causal --json                for programs

Needs nvdisasm (pip install nvidia-cuda-nvdisasm, or triton) and no GPU. benchmarks/sass/cost.py defines the counts.
README.md in this folder has a table of results.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if __package__ in (None, ""):  # run as a file: make `benchmarks` importable
    sys.path.insert(0, str(ROOT))

from benchmarks.sass.cost import KINDS, UNITS, KernelCost, LoopCost, Shape, kernel_cost  # noqa: E402
from cute_fa4.emulator.model import nvdisasm  # noqa: E402
from cute_fa4.emulator.model.program import parse  # noqa: E402
from cute_fa4.system import pipes  # noqa: E402

# Opcodes that make up less of a loop than this are not shown.
SHOWN_FROM = 2


def measure(cubin: Path, shape: Shape) -> tuple[KernelCost, nvdisasm.Resources]:
    """Cost and resources of the one attention kernel in a cubin."""
    cost = kernel_cost(parse(nvdisasm.disassemble(cubin)), shape)
    return cost, nvdisasm.resources(cubin.read_bytes())


def flash_attn_4_cubin(path: Path, head_dim: int, dtype: str, causal: bool, arch: str) -> None:
    """Compile flash-attn-4 into path, in a new process (sass/flash_attn_4.py says why)."""
    command = [sys.executable, "-m", "benchmarks.sass.flash_attn_4", str(path)]
    command += ["--head-dim", str(head_dim), "--dtype", dtype, "--arch", arch]
    command += ["--causal"] if causal else []
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if result.returncode or not path.exists():
        raise RuntimeError(f"{' '.join(command)} failed:\n{result.stdout}\n{result.stderr}")


def table(rows: dict[str, tuple[KernelCost, nvdisasm.Resources]]) -> str:
    """Instructions for each loop and kernel, the ratio of the first to the last, opcodes."""
    names = list(rows)
    width = max(map(len, names)) + 2
    lines = [f"{'':34}" + "".join(f"{name:>{width}}" for name in names)]
    if len(names) > 1:
        lines[0] += f"{'ratio':>8}"

    def line(label: str, values: list, ratio: bool = False) -> None:
        shown = "".join(f"{'-' if v is None else f'{v:.0f}':>{width}}" for v in values)
        if ratio and len(values) > 1 and None not in values:
            shown += f"{values[0] / values[-1]:8.2f}"
        lines.append(f"{label:34}{shown}")

    for kind in KINDS:
        loops = [cost.of(kind) if kind in cost.kinds else None for cost, _ in rows.values()]
        if any(loops):
            values = [loop and loop.per_unit for loop in loops]
            line(f"{kind} loop, per {UNITS[kind]}", values, ratio=True)
            counts = [opcodes_per_unit(loop) for loop in loops]
            largest = {name: max(c.get(name, 0) for c in counts) for c in counts for name in c}
            for name in sorted(largest, key=largest.__getitem__, reverse=True):
                if largest[name] >= SHOWN_FROM:
                    line(f"    {name}", [c.get(name, 0) for c in counts])
    line("local-memory instructions", [cost.local_memory_instructions for cost, _ in rows.values()])
    line("stack, bytes a thread", [resources.stack_bytes for _, resources in rows.values()])
    line("registers at launch", [resources.registers for _, resources in rows.values()])
    line("instructions in the kernel", [cost.total_instructions for cost, _ in rows.values()])
    return "\n".join(lines)


def opcodes_per_unit(loop: LoopCost | None) -> dict[str, float]:
    return {name: count / loop.units for name, count in loop.opcodes.items()} if loop else {}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cubin", type=Path, help="measure this file and compile nothing")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument(
        "--block-n", type=int, default=128, help="keys a tile of --cubin and of flash-attn-4 (128)"
    )
    parser.add_argument("--dtype", choices=("bf16", "fp16"), default="bf16")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--lse", action="store_true", help="compile the variant that writes LSE")
    parser.add_argument("--arch", choices=("sm_100a", "sm_103a"), default="sm_100a")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave the cubins there")
    args = parser.parse_args(argv)

    shape = Shape(args.head_dim, args.block_n)
    rows = {}
    if args.cubin:
        rows[args.cubin.stem] = measure(args.cubin, shape)
    else:
        from benchmarks.sass.our_kernel import compile_artifacts
        from cute_fa4.sm100.choose.choose_config import choose_config

        config = choose_config(
            qkv_dtype=args.dtype,
            head_dim=args.head_dim,
            causal=args.causal,
            write_lse=args.lse,
            arch=args.arch,
            maximum="exact",  # like flash-attn-4's, for comparison
        )
        with tempfile.TemporaryDirectory() as temporary:
            folder = args.keep or Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            ours = folder / "cute_fa4.cubin"
            ours.write_bytes(compile_artifacts(config).cubin)
            rows["cute_fa4"] = measure(ours, Shape(args.head_dim, config.tiles.BN))
            if importlib.util.find_spec("flash_attn") is None:
                print("flash-attn-4 is not installed: no comparison", file=sys.stderr)
            else:
                theirs = folder / "flash_attn_4.cubin"
                flash_attn_4_cubin(theirs, args.head_dim, args.dtype, args.causal, args.arch)
                version = importlib.metadata.version("flash-attn-4")
                rows[f"flash-attn-4 {version}"] = measure(theirs, shape)
    if args.json:
        report = {name: {**c.as_dict(), **vars(r)} for name, (c, r) in rows.items()}
        print(json.dumps(report, indent=1))
    else:
        print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(pipes.run(main))
