"""GEMMs of others that were timed on a B200, modelled as `profile` models any kernel: what the estimates are worth.

    git clone https://github.com/gau-nernst/learn-cuda && git -C learn-cuda checkout 1454f8b
    git clone https://github.com/HazyResearch/ThunderKittens && git -C ThunderKittens checkout 0b55588d
    python -m benchmarks.cycle_model.others learn-cuda ThunderKittens

compiles them with nvcc, runs one CTA or CTA pair of each on the emulator, checks its result, and writes the modelled
TFLOPS into kernels_of_others.json of the model, which has the published ones. docs/generate.py writes the table.

A launch takes as long as its CTAs, one after another on 148 SMs: waves x cycles of a CTA, at the model's clock.
"""

import argparse
import json
import re
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from cute_fa4 import emulator
from cute_fa4.emulator import ptx_files
from cute_fa4.emulator.model.constants import fitted_b200
from cute_fa4.emulator.model.stated_error import FILE
from cute_fa4.emulator.run.launch import SMS

SIZE = 4096  # M = N = K of the published rows
LEARN_CUDA, KITTENS = "learn-cuda", "ThunderKittens"
FOLDERS = {LEARN_CUDA: "02e_matmul_sm100", KITTENS: "kernels/gemm/educational_b200"}
OPTIONS = {
    LEARN_CUDA: "-std=c++17",
    KITTENS: "-std=c++20 --expt-extended-lambda -DKITTENS_BLACKWELL -DKITTENS_SM100",
}
STUB = "#include <algorithm>\n#include <cuda_bf16.h>\n#include <tuple>\n#define TORCH_CHECK(...) ((void)0)\n"
"""In place of torch/library.h, which only host code needs."""
LANE = "cta_rank * 128 + "
"""Left out of lanes of tensor memory. It makes 128 to 255 of the second CTA of a pair, which the emulator refuses."""

SHARED_ADDRESSES = (
    (
        r"(tcgen05\.alloc\S+\s*)\[(%rd\d+)\]([^;]*);",
        r"{ .reg .b64 %at; cvta.to.shared.u64 %at, \2; \1[%at]\3; }",
    ),
    (r"(tcgen05\.commit\S*::one)(\.b64)", r"\1.shared::cluster\2"),
)
"""ThunderKittens mixes generic and shared addresses of shared memory, which the emulator refuses."""


@dataclass(frozen=True)
class Gemm:
    """One kernel.

    entry   part of the mangled name             tile    rows and columns of C that a cluster computes at a time
    maps    rows and columns of a copy of A, B; of C or None: a pointer
    ctas    of a cluster                         blocks  CTAs that stay and loop over tiles; 0: a cluster for each tile
    """

    maker: str
    name: str
    file: str
    entry: str
    threads: int
    shared: int
    tile: tuple[int, int]
    maps: tuple
    ctas: int = 1
    blocks: int = 0

    @property
    def clusters(self) -> int:
        """How many run at a time."""
        return (self.blocks or SMS) // self.ctas

    @property
    def turns(self) -> int:
        """Tiles of C that the SMs of a cluster compute, one after another."""
        return -(-SIZE * SIZE // (self.tile[0] * self.tile[1] * self.clusters))


KB = 1 << 10
RING = 224 * KB  # stages of the pipelined kernels
NARROW = ((128, 64), (128, 64), None)
KITTENS_SHARED = 226 * KB
GEMMS = (
    Gemm(LEARN_CUDA, "v2b", "matmul_v2.cu", "ELb1EE", 128, 192 * KB, (128, 256), ((128, 256), (256, 256), None)),
    Gemm(LEARN_CUDA, "v3", "matmul_v3.cu", "v3", 128, 192 * KB, (128, 256), ((128, 128), (256, 128), None)),
    Gemm(LEARN_CUDA, "v4", "matmul_v4.cu", "v4", 128, RING, (128, 128), NARROW),
    Gemm(LEARN_CUDA, "v5", "matmul_v5.cu", "Lb0EE", 128, RING, (256, 256), NARROW, 2),
    Gemm(LEARN_CUDA, "v6", "matmul_v6.cu", "Lb0EE", 192, RING, (256, 256), NARROW, 2, 148),
    Gemm(LEARN_CUDA, "v7b", "matmul_v7.cu", "Lb0ELb0EE", 192, RING + 148, (256, 256), NARROW, 2, 128),
    Gemm(KITTENS, "level 07", "level_07.cu", "matmul", 128, KITTENS_SHARED, (128, 128),
         ((128, 64), (64, 128), (128, 128))),
    Gemm(KITTENS, "level 08", "level_08.cu", "matmul", 128, KITTENS_SHARED, (128, 256),
         ((128, 64), (64, 256), (128, 64))),
    Gemm(KITTENS, "level 09", "level_09.cu", "matmul", 384, KITTENS_SHARED, (512, 256),
         ((128, 64), (64, 128), (128, 32)), 2),
)  # fmt: skip


def compiled(gemm: Gemm, checkout: Path) -> str:
    """The PTX of its file, by nvcc."""
    path = checkout / FOLDERS[gemm.maker] / gemm.file
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "torch").mkdir()
        (Path(folder) / "torch" / "library.h").write_text(STUB)
        source, made = Path(folder) / path.name, Path(folder) / "kernel.ptx"
        text = path.read_text().replace('#include "launch.cu"', "")
        source.write_text(text.replace(LANE, ""))
        command = ["nvcc", "--ptx", "-arch=sm_100a", "-O3", "-lineinfo", "--expt-relaxed-constexpr"]
        command += [
            *OPTIONS[gemm.maker].split(),
            f"-I{folder}",
            f"-I{path.parent}",
            f"-I{checkout}/include",
        ]
        subprocess.run([*command, source, "-o", made], check=True, capture_output=True)
        text = made.read_text()
    for found, right in SHARED_ADDRESSES:
        text = re.sub(found, right, text)
    return text


def _map(tensor, box, rank: int) -> bytes:
    """(64 columns, rows, groups of 64 columns, ...), as both makers do; narrower boxes have a narrower swizzle."""
    (height, width), (rows, columns) = tensor.shape, box
    group = min(64, columns)
    sizes, boxes = (group, height, width // group, 1, 1), (group, rows, columns // group, 1, 1)
    strides = 2 * width, 2 * group, 2 * height * width, 2 * height * width
    return ptx_files.encode_tiled(
        "bf16", tensor, sizes[:rank], strides[: rank - 1], box=boxes[:rank], swizzle=2 * group
    )


def _arguments(gemm: Gemm, a, b, c, parameters: int) -> list:
    rank = 3 if gemm.maker == LEARN_CUDA else 5
    boxes = [box and _map(x, box, rank) for x, box in zip((a, b, c), gemm.maps, strict=True)]
    if gemm.maker == LEARN_CUDA:
        rest = (None, 0) if parameters == 8 else ()
        return [*boxes[:2], c, c.shape[0], c.shape[1], SIZE, *rest]
    layouts = [
        struct.pack("<4Q", x.data_ptr(), 0, *x.shape).ljust(128, b"\0") + box.ljust(256, b"\0")
        for x, box in zip((a, b, c), boxes, strict=True)
    ]
    return [*layouts, SIZE]


def modelled(gemm: Gemm, text: str) -> float:
    """TFLOPS of the problem. ValueError if the result is wrong, or if the model cannot follow the kernel."""
    (entry,) = (name for name in re.findall(r"\.entry (\w+)", text) if gemm.entry in name)
    kernel = ptx_files.load(text, entry, checks=None)
    rows, columns = gemm.tile
    tiles = gemm.turns if gemm.blocks else 1
    across = min(tiles, 2)
    m, n = rows * (tiles // across), columns * across
    torch.manual_seed(0)
    if gemm.maker == KITTENS:  # one size: that of the matrices, and the depth
        a, b = (torch.randn(SIZE, SIZE).mul(SIZE**-0.5).bfloat16() for _ in range(2))
        exact = a[:m].double() @ b[:, :n].double()
        c = ptx_files.aligned_empty(SIZE, SIZE, dtype=torch.bfloat16)
    else:
        a, b = (torch.randn(x, SIZE).mul(SIZE**-0.5).bfloat16() for x in (m, n))
        exact = a.double() @ b.double().T
        c = ptx_files.aligned_empty(m, n, dtype=torch.bfloat16)
    a, b = ptx_files.aligned(a), ptx_files.aligned(b)

    def launch():
        with ptx_files.reachable(a, b, c):
            kernel.launch(
                *_arguments(gemm, a, b, c, len(kernel.parameters)),
                grid=gemm.ctas, block=gemm.threads, cluster=gemm.ctas, shared=gemm.shared,
            )  # fmt: skip

    profiles = emulator.profile(launch)
    for why in profiles.failed.values():
        raise ValueError(why)
    (profile,) = profiles.kernels
    if not (c[:m, :n].double() - exact).norm() <= 5e-3 * exact.norm():
        raise ValueError(f"{gemm.name}: the result is wrong")
    seconds = gemm.turns // tiles * profile.cycles / fitted_b200()["clock_ghz"].value * 1e-9
    return 2 * SIZE**3 / seconds / 1e12


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for maker in (LEARN_CUDA, KITTENS):
        parser.add_argument(maker, type=Path, help="its checkout")
    checkouts = vars(parser.parse_args())
    data = json.loads(FILE.read_text())
    rows = {(row["maker"], row["kernel"]): row for row in data["rows"]}
    for gemm in GEMMS:
        row = rows[gemm.maker, gemm.name]
        try:
            row["modelled"] = round(modelled(gemm, compiled(gemm, checkouts[gemm.maker])))
            row["why"] = ""
        except (ValueError, emulator.EmulatorError) as error:
            row["modelled"], row["why"] = None, str(error).split("\n")[0]
        print(gemm.maker, gemm.name, row["modelled"], row["published"], row["why"], flush=True)
    FILE.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
