"""The kernel's speed on a B200, modeled from its machine code and compared with flash-attn-4's.

    python benchmarks/model.py                    the table
    python benchmarks/model.py --only WORDS       of the kernels whose name has these words
    python benchmarks/model.py --record           model what docs/data/modelled.json lacks or has of older code;
                                                  --processes N at a time; with --only of these names in any case
    python benchmarks/model.py --record --list    only say what that is; the exit status is 1 if there is something
    python benchmarks/model.py --json             the same with every constant and cycle count
    python benchmarks/model.py --svg FOLDER       pictures of the steady state, of CTAs under a window
    python benchmarks/model.py --calibration      published against modelled speeds
    python benchmarks/model.py --fit              choose the fitted constants again

docs/generate.py writes the pages. No GPU takes part and nothing is measured. How it works: benchmarks/cycle_model/,
what it cannot see: docs/performance/method.md. Needs nvdisasm (pip install nvidia-cuda-nvdisasm, or triton).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if __package__ in (None, ""):  # run as a file: make `benchmarks` importable
    sys.path.insert(0, str(ROOT))

from benchmarks.cycle_model import (  # noqa: E402
    calibration,
    fixed_cost,
    modelled,
    recorded,
    records,
    report,
    timeline,
)
from benchmarks.cycle_model.evaluate import AlignedKernel  # noqa: E402
from benchmarks.cycle_model.kernels import OURS, THEIRS  # noqa: E402
from cute_fa4.emulator.model.constants import fitted_b200  # noqa: E402
from cute_fa4.system import pipes  # noqa: E402

# The picture shows this many key tiles from the middle of a CTA of the longest simulated length.
PICTURE_TILES = 3


def pictures(kernels: dict, folder: Path) -> None:
    """One SVG a kernel: PICTURE_TILES key tiles of the steady state, under a window a whole CTA."""
    folder.mkdir(parents=True, exist_ok=True)
    for variant, kernel in kernels.items():
        of_window = (w for w in kernel.results if w.work_tiles == 1 and w.window == variant.window)
        work = max(of_window, key=lambda w: w.tiles)
        result, cycles = kernel.results[work], kernel.steady.cycles
        if variant.window:
            first, last = 0.0, result.cycles
            title = f"{variant}: modelled, a CTA of {work.tiles} key tiles, {last:.0f} cycles"
        else:
            first, last = result.cycles / 2, result.cycles / 2 + PICTURE_TILES * cycles
            title = f"{variant}: modelled, {cycles:.0f} cycles a key tile (128 keys, 2 query tiles)"
        picture = timeline.svg(result, first, last, title)
        (folder / f"{str(variant).replace(' ', '_')}.svg").write_text(picture)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--svg", type=Path, metavar="FOLDER")
    parser.add_argument("--calibration", action="store_true")
    parser.add_argument("--fit", action="store_true")
    parser.add_argument(
        "--only", metavar="WORDS", help='kernels whose name has these words: "cute_fa4 d128 causal"'
    )
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="of --record")
    parser.add_argument("--list", action="store_true", help="of --record")
    args = parser.parse_args(argv)
    if args.list and not args.record:
        parser.error("--list: accepted with --record")
    if args.record:
        words = args.only and args.only.split()
        if args.list:
            found = records.listing(recorded.subjects(), words)
            print(*found, sep="\n")
            return int(len(found) > 1)
        errors = records.record(recorded.subjects, words, args.processes)
        print(*errors, sep="\n", file=sys.stderr)
        return int(bool(errors))

    makers = (OURS, THEIRS)
    if importlib.util.find_spec("flash_attn") is None:
        print("flash-attn-4 is not installed: no comparison", file=sys.stderr)
        makers = (OURS,)
    published = dict.fromkeys(row.variant for row in calibration.published_rows())
    if args.fit:
        kernels = {variant: AlignedKernel.load(variant) for variant in published}
        distance, values = calibration.fit(kernels, calibration.published_rows())
        calibration.write(values)
        print(f"root mean square of log(modelled / published) {distance:.4f}: {values}")
        return 0

    constants = fitted_b200()
    chosen = published if args.calibration else report.variants(makers)
    words = (args.only or "").split()
    kernels = {
        variant: report.model(variant, constants)
        for variant in chosen
        if all(word in str(variant).split() for word in words)
    }
    cycles = {variant: kernel.cycles for variant, kernel in kernels.items()}
    if args.calibration:
        calibrated = report.calibration_table(kernels, constants)
        print(calibrated, fixed_cost.table(cycles, constants), sep="\n\n")
        return 0
    found = report.rows(kernels, constants)
    if args.svg:
        pictures(kernels, args.svg)
    if args.json:
        print(json.dumps(report.as_json(kernels, found, constants), indent=1))
    else:
        orders = report.orders_table(kernels, constants)
        tables = (report.table(found, kernels), report.pages_table(found, kernels), orders)
        print(*tables, report.steady_table(kernels), modelled.made_by(kernels), sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(pipes.run(main))
