"""Kernels of others, unmodified, on the emulator: which, how they are called, the table of docs/emulator_coverage.md.

    git clone https://github.com/NVIDIA/cutlass && git -C cutlass checkout 7107b0553
    git clone https://github.com/flashinfer-ai/flashinfer && git -C flashinfer checkout fb28d7242
    pip install flash-attn-4 quack-kernels nvidia-cudnn-frontend
    export DEEPGEMM=gemm.ptx FLASHMLA=decode.ptx FLASHINFER=flashinfer
    python -m tests.emulator.foreign_kernels cutlass --docs

runs all and writes the table. With --only TEXT it refreshes the rows whose origin and name have TEXT in them; rows of
origins that are not here stay as they are. Each row names the version that it was written from.

Each is an example with its own check, or a call of foreign_calls.py: it computes a reference, compares, and raises
if they differ. A case runs in a separate process at level "hardware"; if that reports something, again
without checks, to see the numbers; and at level "ptx", to see what that asks for in addition. Which spellings of PTX
the cases execute is kept for the count of spellings.py.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.emulator import spellings

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = "examples/python/CuTeDSL"
CUTLASS = "CUTLASS"
COMMITS = {
    "CUTLASS": "7107b0553",
    "DeepGEMM": "54e2261",
    "FlashInfer": "fb28d7242",
    "FlashMLA": "9241ae3",
}
FILES = (
    "DeepGEMM",
    "FlashMLA",
)  # CUDA C++: PTX in a file that an environment variable of this name names
PACKAGES = {"flash-attn-4": "flash_attn", "FROST": "cudnn", "quack": "quack"}  # origin -> module
DISTRIBUTIONS = {
    "flash-attn-4": "flash-attn-4",
    "FROST": "nvidia-cudnn-frontend",
    "quack": "quack-kernels",
}
_MARKS = (
    "<!-- foreign: written by python -m tests.emulator.foreign_kernels DIR --docs -->",
    "<!-- /foreign -->",
)


@dataclass(frozen=True)
class Case:
    """One example: its file below cute/blackwell, and a call with the module as m and cutlass as c.

    reports  class of the error that level "hardware" raises, "" where it is clean        why  what the report is about
    origin   CUTLASS; or a key of FILES, FlashInfer, one of PACKAGES: then file is the file of the kernel, m is
             foreign_calls
    mode     under which its numbers are right: "in_order", but where a race that is reported shows
    shows    (mode under which what is reported shows without checks, too, class of the error); (): none was found
    """

    name: str
    file: str
    call: str
    reports: str = ""
    why: str = ""
    origin: str = CUTLASS
    mode: str = "in_order"
    shows: tuple = ()

    def missing(self, cutlass):
        """The missing requirement of the case, "" if it can run."""
        if self.origin in FILES:
            name = self.origin.upper()
            here = Path(os.environ.get(name, "")).is_file()
            return "" if here else f"{name}=FILE does not name the PTX of its kernel"
        if self.origin == "FlashInfer":
            here = Path(os.environ.get("FLASHINFER", "")) / "flashinfer/cute_dsl"
            return "" if here.is_dir() else "FLASHINFER=DIR does not name a checkout"
        if self.origin != CUTLASS:
            found = importlib.util.find_spec(PACKAGES[self.origin])
            return "" if found else f"no {self.origin}: pip install {DISTRIBUTIONS[self.origin]}"
        if cutlass and (Path(cutlass) / EXAMPLES / "cute/blackwell" / self.file).is_file():
            return ""
        return (
            "no checkout of CUTLASS: git clone https://github.com/NVIDIA/cutlass, and CUTLASS=DIR"
        )


_GEMM = "m.run_dense_gemm((256, 256, 128), 1e-1)"
_TUTORIAL = "tutorial/tutorial_gemm/fp16_gemm_{}.py"
_HALVES = "c.Float16, c.Float16, c.Float32"
_FMHA = (
    "m.run((1, 256, 2, 64), (1, 256, 2, 64), {0}, {0}, c.Float16, c.Float32, c.Float32, (128, 128), False, False, "
    "False, True, False, True, (-1, -1), 1.0, 1.0, 1.0, 1.0, 0.125, 0.0, 1e-1, 0, 1, False)"
)
CASES = (
    *(
        Case(f"tutorial GEMM {number}", _TUTORIAL.format(number), _GEMM)
        for number in ("0", "1", "2", "3", "3_1", "4", "5")
    ),
    Case(
        "tutorial GEMM 6, dependent launch",
        _TUTORIAL.format("6"),
        "m.run_dense_gemm((256, 256, 128), 1e-1)",
    ),
    Case(
        "persistent GEMM, fp8",
        "kernel/dense_gemm/dense_gemm_persistent.py",
        "m.run((256, 256, 128, 1), c.Float8E4M3FN, c.Float16, c.Float32, 'k', 'k', 'n', (128, 128), (1, 1), False, "
        "True)",
    ),
    Case(
        "persistent GEMM, launch control, CTA pairs",
        "kernel/dense_gemm/dense_gemm_persistent_dynamic.py",
        f"m.run((256, 256, 128, 2), {_HALVES}, 'k', 'k', 'n')",
    ),
    Case(
        "grouped GEMM, tensor maps edited in shared memory",
        "kernel/grouped_gemm/grouped_gemm.py",
        f"m.run(2, ((128, 128, 128, 1), (256, 128, 64, 1)), True, {_HALVES}, 'k', 'k', 'n', (128, 128), (1, 1), False, "
        "m.utils.TensorMapUpdateMode.SMEM, 1e-1, 0, 1, False)",
    ),
    Case(
        "grouped GEMM, tensor maps edited in global memory",
        "kernel/grouped_gemm/grouped_gemm.py",
        f"m.run(2, ((128, 128, 128, 1), (256, 128, 64, 1)), True, {_HALVES}, 'k', 'k', 'n', (128, 128), (1, 1), False, "
        "m.utils.TensorMapUpdateMode.GMEM, 1e-1, 0, 1, False)",
    ),
    Case(
        "nvfp4 GEMM: scales by tcgen05.cp, 4-bit tensor maps",
        "tutorial/tutorial_gemm/nvfp4_gemm_0.py",
        "m.run_nvfp4_gemm((128, 256, 512, 1), 1e-1)",
    ),
    Case("FMHA, causal", "kernel/attention/fmha/fmha.py", _FMHA.format("c.Float16")),
    Case("FMHA, causal, fp8", "kernel/attention/fmha/fmha.py", _FMHA.format("c.Float8E4M3FN")),
    Case(
        "FMHA backward, causal",
        "kernel/attention/fmha/fmha_bwd.py",
        "m.run(256, 256, 2, 2, 64, 1, True, False, c.Float16, c.Float32, (128, 128), 0.125, (-1, -1), 0, 1, False)",
        "RaceError",
        "tensor memory is freed by compute warps, and nothing orders that after the last load of the reduce warps",
        shows=("together", "TensorMemoryError"),
    ),
    Case(
        "MLA decode, fp16",
        "kernel/attention/mla/mla_decode_fp16.py",
        "m.run(1, 1, 256, 128, 512, 64, c.Float16, c.Float16, c.Float32, c.Float32, (128, 128), (128, 256), 1, False, "
        "False, False, 128, 0.04, 1.0, 0.0, 1e-1, 0, 1, False, False)",
        "RaceError",
        "the row maxima that warps exchange are overwritten for the next tile, and nothing orders that after the reads",
    ),
    Case(
        "Mamba-2 SSD",
        "kernel/attention/mamba2_ssd/mamba2_ssd.py",
        "m.run((1, 1, 1, 1, 2, 64, 128, 128), c.BFloat16, c.Float32, c.Float32, 'none', 5e-1, False, False, 0, 1, "
        "False)",
    ),
    Case(
        "MLA decode, fp8",
        "kernel/attention/mla/mla_decode_fp8.py",
        "m.run(1, 1, 256, 128, 512, 64, c.Float8E4M3FN, c.Float8E4M3FN, c.Float32, c.Float32, (128, 128), (128, 256), "
        "1, False, False, False, 128, 0.04, 1.0, 0.0, 1e-1, 0, 1, False, False)",
        "RaceError",
        "the row maxima that warps exchange are overwritten for the next tile, and nothing orders that after the reads",
    ),
    Case(
        "mixed-input GEMM, int8 x bf16",
        "kernel/mixed_input_gemm/mixed_input_gemm.py",
        "m.run((128, 128, 128, 1), 0, 0, c.Int8, c.BFloat16, c.BFloat16, c.Float32, 'k', 'k', 'n', (128, 128, 64), "
        "(1, 1), False, True, 1e-1, 0, 1, False, False)",
    ),
    Case(
        "mixed-input GEMM, int4 x bf16, CTA pairs",
        "kernel/mixed_input_gemm/mixed_input_gemm.py",
        "m.run((256, 128, 256, 1), 1, 128, c.Int4, c.BFloat16, c.BFloat16, c.Float32, 'k', 'k', 'n', (256, 128, 128), "
        "(2, 1), True, True, 1e-1, 0, 1, False, False)",
    ),
    Case(
        "blockwise-scaled GEMM, fp8",
        "kernel/blockwise_gemm/blockwise_gemm.py",
        "m.run((128, 128, 256, 1), c.Float8E4M3FN, c.BFloat16, c.Float32, c.Float32, 'k', 'k', 'n', (128, 128), (1, 1),"
        " False, 1e-1, 0, 1, False)",
    ),
    Case(
        "nvfp4 GEMM, pipelined",
        "tutorial/tutorial_gemm/nvfp4_gemm_1.py",
        "m.run_nvfp4_gemm((256, 256, 512, 1), 1e-1, 0, 1, False, False)",
    ),
    *(
        Case(
            f"grouped block-scaled GEMM, {name}",
            "kernel/blockscaled_grouped_gemm/grouped_blockscaled_gemm.py",
            f"m.run(2, [(128, 128, {k}, 1), (256, 128, {2 * k}, 1)], False, c.{kind}, c.{scale}, {vector}, c.Float16, "
            "'k', 'k', 'n', (128, 128), (1, 1), 1e-1, 0, 1, False)",
        )
        for name, k, kind, scale, vector in (
            ("mxf8", 128, "Float8E4M3FN", "Float8E8M0FNU", 32),
            ("mxf4", 256, "Float4E2M1FN", "Float8E8M0FNU", 32),
        )
    ),
    *(
        Case(
            name,
            f"kernel/dense_gemm/{file}.py",
            f"m.run((256, 256, 128, 1), {_HALVES}, 'k', 'k', 'n')",
        )
        for name, file in (
            ("GEMM, CTA pairs", "dense_gemm"),
            ("GEMM, software pipeline", "dense_gemm_software_pipeline"),
            ("persistent GEMM, prefetch", "dense_gemm_persistent_prefetch"),
        )
    ),
    *(
        Case(
            name,
            "kernel/dense_gemm/dense_gemm_persistent.py",
            f"m.run((256, 256, 128, 1), c.{kind}, c.Float16, c.Float16, 'k', 'k', 'n', (128, 128), (1, 1), False, "
            "True)",
        )
        for name, kind in (
            ("persistent GEMM, accumulators of f16", "Float16"),
            ("persistent GEMM, fp8, accumulators of f16", "Float8E4M3FN"),
        )
    ),
    Case("forward, causal", "flash_fwd_sm100.py", "m.attention()", origin="flash-attn-4"),
    Case(
        "backward, causal",
        "flash_bwd_sm100.py",
        "m.attention(backward=True)",
        origin="flash-attn-4",
    ),
    Case(
        "forward, causal, head dim 256",
        "flash_fwd_sm100.py",
        "m.attention(head_dim=256)",
        origin="flash-attn-4",
    ),
    *(
        Case(f"latent rows, {name}", f"{file}.py", f"m.latent({arguments})", origin="flash-attn-4")
        for name, file, arguments in (
            ("CTA pairs, 128 heads", "flash_fwd_mla_sm100", "128, one_cta=False"),
            ("one CTA, 128 heads", "flash_fwd_mla_1cta_sm100", "128, one_cta=True"),
            ("one CTA, 64 heads", "flash_fwd_mla_1cta_kb64_sm100", "64, one_cta=True"),
        )
    ),
    Case(
        "backward, causal, head dim 256",
        "sm100_hd256_2cta_fmha_backward.py",
        "m.attention(backward=True, head_dim=256)",
        origin="flash-attn-4",
    ),
    Case("forward, full, CTA pairs", "prefill_d128_f16.py", "m.frost(False)", origin="FROST"),
    Case("softmax", "softmax.py", "m.softmax()", origin="quack"),
    Case("RMSNorm", "rmsnorm.py", "m.rmsnorm()", origin="quack"),
    Case("cross entropy", "cross_entropy.py", "m.cross_entropy()", origin="quack"),
    Case("GEMM", "gemm_sm100.py", "m.gemm()", origin="quack"),
    Case("prefill, causal", "prefill.py", "m.flashinfer_prefill()", origin="FlashInfer"),
    Case(
        "decode, heads of a group",
        "gqa_decode.py",
        "m.flashinfer_decode()",
        "BarrierError",
        "copies use mbarriers of the pipelines, whose initialisation no fence follows",
        origin="FlashInfer",
    ),
    Case("bf16 GEMM, by nvcc", "sm100_bf16_gemm.cuh", "m.deep_gemm()", origin="DeepGEMM"),
    Case(
        "sparse decode of an fp8 cache, by nvcc",
        "decode/head64/kernel.cuh",
        "m.flash_mla()",
        "RaceError",
        "row maxima that two warps exchange are overwritten by row sums, and nothing orders that after the reads: "
        "wrong where a warp runs ahead",
        origin="FlashMLA",
        mode="together",
        shows=("in_order", "ValueError"),
    ),
)

_CHILD = """
import importlib.util, json, os, sys, warnings
warnings.simplefilter("ignore")
from cute_fa4 import emulator
from cute_fa4.emulator.as_if_cuda import as_if_cuda
import torch
from tests.emulator.scaled_mm import scaled_mm
torch._scaled_mm = scaled_mm
origin, examples, file, call, checks, mode = sys.argv[1:]
path = os.path.join(examples, "cute/blackwell", file)
if origin == "CUTLASS":
    sys.path[:0] = [os.path.dirname(path), examples]
said = {"error": "", "message": ""}
with as_if_cuda():
    if origin == "CUTLASS":
        spec = importlib.util.spec_from_file_location("example", path)
        module = importlib.util.module_from_spec(spec)
        sys.modules["example"] = module
        spec.loader.exec_module(module)
    else:
        from tests.emulator import foreign_calls as module
    import cutlass
    with emulator.use(mode=mode, checks=checks or None) as run:
        try:
            eval(call, {"m": module, "c": cutlass})
        except Exception as error:
            said = {"error": type(error).__name__, "message": str(error).split("\\n")[0]}
from tests.emulator.spellings import known
said |= {"launches": run.launches, "instructions": run.instructions, "notes": len(run.notes)}
said["spellings"] = sorted(known() & set(run.opcodes))
print("\\nSAID " + json.dumps(said))
"""


def run(case, cutlass, checks="hardware", mode=None):
    """The result of a case: error (class, "" when its own check passed), message, launches, instructions, notes."""
    environment = {**os.environ, "CUTE_DSL_ARCH": "sm_100a", "QUACK_CACHE_ENABLED": "0"}
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
    )
    done = subprocess.run(
        [
            sys.executable, "-c", _CHILD, case.origin, str(Path(cutlass or ".") / EXAMPLES), case.file, case.call,
            checks, mode or case.mode,
        ],
        capture_output=True, text=True, env=environment, timeout=1200,
    )  # fmt: skip
    found = re.search(r"^SAID (.*)$", done.stdout, re.M)
    if not found:
        return {
            "error": "crash",
            "message": (done.stderr or done.stdout)[-2000:],
            "launches": 0,
            "instructions": 0,
        }
    return json.loads(found[1])


def version(origin):
    """Where its files are from."""
    return COMMITS.get(origin) or importlib.metadata.version(DISTRIBUTIONS[origin])


def row(case, cutlass):
    """(one line of the table, the spellings that the case executed)."""
    said = run(case, cutlass)
    verdict, clean = "clean", not said["error"]
    numbers = said if clean else run(case, cutlass, checks="")
    if not clean:
        verdict = f"{said['error']}: {case.why or said['message']}"
    right = "right" if not numbers["error"] else f"{numbers['error']}: {numbers['message']}"
    if case.mode != "in_order" and right == "right":
        right = f'right, mode "{case.mode}"'
    written = run(case, cutlass, checks="ptx")["error"] or "clean"
    file = Path(case.file).name.removesuffix(".py")
    line = (
        f"| {case.origin} {version(case.origin)} | {case.name} | {file} | {numbers['launches']} "
        f"| {numbers['instructions']:,} | {verdict} | {written} | {right} |"
    )
    return line, numbers.get("spellings", [])


def rows_of(page):
    """{(origin, name): line} of the table in the text of the document."""
    begin, end = _MARKS
    lines = [line for line in page.split(begin)[1].split(end)[0].split("\n") if line[:2] == "| "]
    cells = [[cell.strip() for cell in line.split("|")[1:3]] for line in lines[1:]]
    return {(a.split()[0], b): line for (a, b), line in zip(cells, lines[1:], strict=True)}


def write_docs(new):
    """Put lines, {(origin, name): line}, into the table; the others stay, in the order of CASES."""
    path = ROOT / "docs" / "emulator_coverage.md"
    text = path.read_text()
    rows = rows_of(text) | new
    lines = [rows[key] for case in CASES if (key := (case.origin, case.name)) in rows]
    head = (
        f'Examples of CUTLASS are in `{EXAMPLES}/cute/blackwell`. "Executed" counts the warp '
        "instructions of all launches of an example, including those that convert its inputs. Column `ptx` names the "
        "first report.\n\n"
        "| origin, version | kernel | file | launches | executed | level `hardware` | level `ptx` "
        "| against a reference |\n"
        "|---|---|---|---:|---:|---|---|---|\n"
    )
    begin, end = _MARKS
    before, rest = text.split(begin)
    after = rest.split(end)[1]
    path.write_text(before + begin + "\n" + head + "\n".join(lines) + "\n" + end + after)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cutlass", nargs="?", default="", help="a checkout of CUTLASS")
    parser.add_argument(
        "--docs", action="store_true", help="write the table of docs/emulator_coverage.md"
    )
    parser.add_argument("--only", default="", help="cases whose origin and name have this in them")
    options = parser.parse_args(argv)
    for case in CASES:
        if options.only not in f"{case.origin} {case.name}":
            continue
        if missing := case.missing(options.cutlass):
            print(f"not run: {case.origin} {case.name}: {missing}", flush=True)
            continue
        line, found = row(case, options.cutlass)
        print(line, flush=True)
        if options.docs:  # each at once: a run that is cut off keeps what it has
            write_docs({(case.origin, case.name): line})
            spellings.note("foreign", found, case.origin)


if __name__ == "__main__":
    main()
