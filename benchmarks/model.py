"""How fast the kernel would be on a B200, modelled from its machine code, beside flash-attn-4's.

    python benchmarks/model.py                    the table
    python benchmarks/model.py --json             the same with every constant and cycle count
    python benchmarks/model.py --svg FOLDER       pictures of the steady state
    python benchmarks/model.py --calibration      published against modelled speeds
    python benchmarks/model.py --fit              choose the fitted constants again
    python benchmarks/model.py --docs             write the tables into docs/performance.md

No GPU takes part and nothing is measured. How it works: benchmarks/cycle_model/, what it cannot
see: docs/performance.md. Needs nvdisasm (pip install nvidia-cuda-nvdisasm, or triton).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if __package__ in (None, ""):  # run as a file: make `benchmarks` importable
    sys.path.insert(0, str(ROOT))

from benchmarks.cycle_model import calibration, report, timeline  # noqa: E402
from benchmarks.cycle_model.constants import fitted_b200  # noqa: E402
from benchmarks.cycle_model.evaluate import AlignedKernel  # noqa: E402
from benchmarks.cycle_model.kernels import OURS, THEIRS, Variant, load  # noqa: E402

DOCS = ROOT / "docs" / "performance.md"
# The picture shows this many key tiles from the middle of a CTA of the longest simulated length.
PICTURE_TILES = 3


def variants(makers: list[str], groups: tuple[int, ...] = (1,)) -> list[Variant]:
    """Every kernel of the table."""
    return [
        Variant(maker, d, causal, group)
        for group in groups
        for d in ((64, 128) if group == 1 else (128,))
        for causal in (False, True)
        for maker in makers
    ]


def fill(text: str, name: str, table: str) -> str:
    """Replace what stands between the marks of a generated table. ValueError without the marks."""
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"{DOCS} has no marks <!-- {name} --> ... <!-- /{name} -->")
    return pattern.sub(lambda found: f"{found[1]}{table}\n{found[2]}", text)


def pictures(kernels: dict, folder: Path) -> None:
    """One SVG a kernel: PICTURE_TILES key tiles of the steady state."""
    folder.mkdir(parents=True, exist_ok=True)
    for variant, kernel in kernels.items():
        work = max((w for w in kernel.results if w.work_tiles == 1), key=lambda w: w.tiles)
        result, cycles = kernel.results[work], kernel.steady.cycles
        first = result.cycles / 2
        title = f"{variant}: modelled, {cycles:.0f} cycles a key tile (128 keys, 2 query tiles)"
        picture = timeline.svg(result, first, first + PICTURE_TILES * cycles, title)
        (folder / f"{str(variant).replace(' ', '_')}.svg").write_text(picture)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--svg", type=Path, metavar="FOLDER")
    parser.add_argument("--calibration", action="store_true")
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--docs", action="store_true")
    parser.add_argument("--no-gqa", action="store_true", help="leave out the rows of grouped heads")
    args = parser.parse_args(argv)

    makers = [OURS, THEIRS]
    if importlib.util.find_spec("flash_attn") is None:
        print("flash-attn-4 is not installed: no comparison", file=sys.stderr)
        makers.remove(THEIRS)
    if args.fit:
        kernels = {v: AlignedKernel.of(load(v)) for v in variants([THEIRS])}
        distance, values = calibration.fit(kernels, calibration.published_rows())
        calibration.write(values)
        print(f"root mean square of log(modelled / published) {distance:.4f}: {values}")
        return 0

    constants = fitted_b200()
    groups = (1,) if args.no_gqa else (1, report.GQA_GROUP)
    chosen = variants([THEIRS]) if args.calibration else variants(makers, groups)
    kernels = {variant: report.model(variant, constants) for variant in chosen}
    if args.calibration:
        print(report.calibration_table(kernels, constants))
        return 0
    found = report.rows(kernels, constants)
    if args.svg:
        pictures(kernels, args.svg)
    if args.docs:
        text = DOCS.read_text()
        text = fill(text, "speeds", report.table(found))
        text = fill(text, "steady", report.steady_table(kernels))
        text = fill(text, "calibration", report.calibration_table(kernels, constants))
        text = fill(text, "constants", report.constants_table(constants))
        DOCS.write_text(text)
    if args.json:
        print(json.dumps(report.as_json(kernels, found, constants), indent=1))
    else:
        print(report.table(found))
        print()
        print(report.steady_table(kernels))
    return 0


if __name__ == "__main__":
    sys.exit(main())
