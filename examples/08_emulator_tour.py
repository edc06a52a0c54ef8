"""A tour of the emulator with the attention kernel itself: watch it, measure what a test reaches, break it.

    1  trace      what each role did and waited for: a picture, a timeline, a trace for https://ui.perfetto.dev
    2  coverage   which instructions of the PTX a call executes
    3  schedules  the same bits for in-order, random and latest-possible execution
    4  a bug      without the fence before a store the numbers stay right under every schedule, but the ordering check
                  names both accesses and the Python lines that they come from

    python examples/08_emulator_tour.py
    python examples/08_emulator_tour.py --out tour        also write tour/pipeline.svg and tour/trace.json

05_find_a_race.py does the last two with a small kernel, including labels.
"""

import argparse
import warnings
from pathlib import Path

import torch

from cute_fa4 import EmulatorWarning, emulator, flash_attn_func
from cute_fa4.emulator.reports import coverage, trace

SEQLEN, HEAD_DIM = 300, 64  # three tiles of keys, the last one in part; two work tiles
FENCE = "fence.proxy.async"


def attention():
    """One call on the same input every time: what the tour looks at."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, SEQLEN, 1, HEAD_DIM, generator=generator).bfloat16()
    return flash_attn_func(q, k, v, causal=True)


def without_the_fence(name: str, ptx: str) -> str:
    """The kernel's PTX without a fence: TMA may not see the output in shared memory."""
    # The load warp has another such fence, after the response to its claim of a further block: it stays.
    output, claim, rest = ptx.partition("clusterlaunchcontrol.query_cancel")
    # One chunk of each query tile, of rows with keys or of zeros.
    assert output.count(FENCE) == 4 and claim, "the kernel has changed: look where its fences stand"
    lines = output.splitlines(keepends=True)
    return "".join(line for line in lines if FENCE not in line) + claim + rest


def title(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: no files are written")
    parser.add_argument("--seeds", type=int, default=1, help="of each kind of schedule; default: 1")
    parser.add_argument("--lines", type=int, default=24, help="of the timeline; default: 24")
    options = parser.parse_args()
    warnings.simplefilter("ignore", EmulatorWarning)

    title("1  Trace")
    with trace.record() as recording:
        expected = attention()
    timeline = recording.text().splitlines()
    print("\n".join(timeline[: options.lines]))
    print(f"... {len(timeline) - 2} slots, {len(recording.marks)} marks")
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        recording.svg(options.out / "pipeline.svg")
        recording.chrome(options.out / "trace.json")
        print(f"{options.out / 'pipeline.svg'}, {options.out / 'trace.json'}: written")

    title("2  Coverage of this one call")
    with coverage.collect() as covered:
        attention()
    print(covered.report(limit=5))

    title("3  Schedules")
    print(emulator.compare(attention, options.seeds))

    title("4  A planted bug")
    print(f"{FENCE} is taken out of the PTX. Results only:")
    broken = {"seeds": options.seeds, "transform": without_the_fence}
    unchecked = emulator.compare(attention, checks=None, **broken)
    same = torch.equal(unchecked.results, expected)
    print(f"{unchecked}; the bits are those of the whole kernel: {same}")
    print("With the order of accesses checked:")
    checked = emulator.compare(attention, checks="ptx", **broken)
    print(checked)
    if unchecked.findings or not same or not checked.findings:
        raise SystemExit("the tour did not go as announced")


if __name__ == "__main__":
    main()
