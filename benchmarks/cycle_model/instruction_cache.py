"""The machine code that a kernel's warps execute, compared with the instruction caches of an SM.

Sizes are measured on an H200 (benchmarks/hopper_instructions.cu): in a loop of up to L0_BYTES a scheduler issues an
instruction a cycle, up to L1_BYTES one in 2.2 (2.8 if all SMs run), beyond that one in 5.7. No sizes of a Blackwell SM
have been published. docs/performance/method.md says what follows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from functools import partial

from benchmarks.cycle_model.evaluate import AlignedKernel
from benchmarks.cycle_model.kernels import OURS, Variant, traced
from benchmarks.cycle_model.modelled import NAN, made_by, marked
from benchmarks.cycle_model.records import Subject, records
from benchmarks.cycle_model.workloads import TILES, workload
from cute_fa4.emulator.model.constants import SUB_PARTITIONS
from cute_fa4.emulator.model.control_codes import INSTRUCTION_BYTES

L0_BYTES = 32 * 1024  # of a sub-partition
L1_BYTES = 128 * 1024  # of an SM
# The longest loops have the copies of small pages.
KERNELS = (
    Variant(OURS, 64),
    Variant(OURS, 128),
    Variant(OURS, 128, causal=True),
    Variant(OURS, 128, page_size=16),
    Variant(OURS, 128, page_size=1),
)


@dataclass(frozen=True)
class Code:
    """Bytes of machine code of a CTA.

    whole       of the kernel
    loop        that are executed again for each key tile, of all warps of an SM
    sub_loop    the same of the warps of the sub-partition that has most
    """

    whole: int
    loop: int
    sub_loop: int


def code_of(kernel: AlignedKernel) -> Code:
    """From the paths of the two longest CTAs of one work tile."""
    single = sorted((work for work in kernel.runs if work.work_tiles == 1), key=lambda w: w.tiles)
    short, long = (kernel.runs[work][0] for work in single[-2:])
    loops: list[set[int]] = [set() for _ in range(SUB_PARTITIONS)]
    for (cta, warp), path in long.items():
        counts, before = (
            Counter(step.instruction.address for step in p) for p in (path, short[cta, warp])
        )
        if cta == 0:
            loops[warp % SUB_PARTITIONS] |= {a for a, n in counts.items() if n > before[a]}
    sizes = [len(addresses) * INSTRUCTION_BYTES for addresses in loops]
    together = len(set.union(*loops)) * INSTRUCTION_BYTES
    return Code(len(kernel.codes) * INSTRUCTION_BYTES, together, max(sizes))


def _figures(variant: Variant) -> dict:
    works = [workload(variant, tiles) for tiles in TILES[-2:]]
    return {"bytes": asdict(code_of(AlignedKernel.of(traced(variant, works))))}


def subject(variant: Variant) -> Subject:
    """The record of a kernel's code, which depends on no constant."""
    from benchmarks.cycle_model.our_kernel import config

    name = f"code of {variant}"
    return Subject(name, str(variant), {}, partial(_figures, variant), partial(config, variant))


def recorded(variant: Variant) -> Code:
    """The code of a kernel; without a record all figures are NaN."""
    missing = subject(variant).state == "missing"
    return Code(*[NAN] * 3) if missing else Code(**records()[f"code of {variant}"]["bytes"])


def table() -> str:
    """Every kernel, and the part of both caches that its loop takes."""
    lines = [
        "| kernel | bytes | loop over key tiles | of 128 KiB | a sub-partition of it | of 32 KiB |",
        "|---|---|---|---|---|---|",
    ]
    used = [subject(variant) for variant in KERNELS]
    for variant, one in zip(KERNELS, used, strict=True):
        code = recorded(variant)
        cells = [str(variant), marked(f"{code.whole:,.0f}", one)]
        for size, room in ((code.loop, L1_BYTES), (code.sub_loop, L0_BYTES)):
            cells += [f"{size:,.0f}", f"{size / room:.0%}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", made_by(used)])
