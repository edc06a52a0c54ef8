"""Kernel -> machine code and traces, compiled and emulated once and then cached.

Cache keys, in addition to the recorder: for kernels of others the package's version; for ours the files of the kernel,
then its machine code, so that an edit that does not change it costs only a compile.
"""

from __future__ import annotations

import importlib.metadata
import json
import pickle
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.cycle_model import cache, our_kernel
from benchmarks.cycle_model.problems import Problem
from benchmarks.cycle_model.workloads import (
    KEYS_A_TILE,
    ROWS_A_CTA,
    Workload,
    uses_pairs,
    workloads_of,
)
from cute_fa4.compiler import toolkit
from cute_fa4.compiler.sources import kernel_sources
from cute_fa4.emulator.model import control_codes, nvdisasm, trace
from cute_fa4.sm100.blueprint import bands
from cute_fa4.sm100.choose import pays
from cute_fa4.sm100.choose.choose_config import FAMILIES, PAIRED
from cute_fa4.sm100.choose.rows_of_tiles import is_wide
from cute_fa4.sm100.choose.which_kernel import Call, which_kernel

ROOT = Path(__file__).resolve().parents[2]
OURS, THEIRS, FROST = "cute_fa4", "flash-attn-4", "FROST"
# Makers of other packages -> (distribution, module here that compiles and traces in a separate process).
PACKAGES = {
    THEIRS: (THEIRS, "flash_attn_4"),
    FROST: ("nvidia-cudnn-frontend", "frost"),
}


def runs_on_pairs(problem: Problem, arch: str = "sm_100a") -> bool:
    """Whether a call of ours takes pairs of CTAs for a problem, which is dense or packed."""
    mask = bands.Causal() if problem.causal else bands.Full()
    if problem.window:
        mask = bands.Window(True, True)
    depths = problem.head_dim, problem.head_dim_v or problem.head_dim
    mean, most = sum(problem.sequences) / problem.batch, max(problem.sequences)
    heads = problem.batch * problem.heads_q
    lengths = pays.Lengths(mean, mean, heads, 1, not problem.lengths, most, most)
    call = Call(problem.dtype, *depths, group=problem.group, seqlen_q=most, mask=mask, arch=arch)
    return FAMILIES[which_kernel(call, lengths).family] in PAIRED


@dataclass(frozen=True)
class Variant:
    """A kernel: its maker, its compile-time choices, and further inputs of its traces.

    window     keys that a query of a causal window sees; 0: no window. Both makers compile one
               kernel for every window
    ragged     sequences are packed
    page_size  keys of a page; 0: keys are contiguous
    one_block  ours, with FA4Config.claims off: a CTA ends with its block
    head_dim_v  of V and O; 0: that of Q and K
    pairs      ours, on CTA pairs (sm100/mhapair, mhawidepair); flash-attn-4 chooses its own
    dtype      of q, k and v: bf16 or e4m3
    arch       what it is compiled for
    choices    ours: further choices of its schedule, as (name, value)
    q_block    queries of a block of block_sparse_tensors, with 128 keys; 0: there are no lists
    in_parts   ours, with cut_lists among the choices: every work tile is a part of a list that is cut
    """

    maker: str
    head_dim: int = 128
    causal: bool = False
    group: int = 1
    window: int = 0
    ragged: bool = False
    page_size: int = 0
    one_block: bool = False
    head_dim_v: int = 0
    pairs: bool = False
    dtype: str = "bf16"
    arch: str = "sm_100a"
    choices: tuple[tuple[str, object], ...] = ()
    q_block: int = 0
    in_parts: bool = False

    @classmethod
    def of(cls, maker: str, problem: Problem, arch: str = "sm_100a") -> Variant:
        """The kernel that runs a problem."""
        return cls(
            maker,
            problem.head_dim,
            problem.causal,
            problem.group,
            problem.window,
            bool(problem.lengths),
            problem.page_size,
            head_dim_v=problem.head_dim_v,
            dtype=problem.dtype,
            arch=arch,
            pairs=maker == OURS and runs_on_pairs(problem, arch),
        )

    @property
    def not_modelled(self) -> str:
        """Why there is no model of this kernel; empty: there is one."""
        if self.maker == THEIRS and self.page_size not in (0, KEYS_A_TILE):
            return "cp.async"
        if self.maker == FROST and (self.window or self.ragged or self.page_size or self.q_block):
            return "dense calls only"
        return ""

    @property
    def pair(self) -> bool:
        """Two CTAs work on one tile together."""
        if self.maker == FROST:  # its adapter's choice, cta_mma
            return self.head_dim > 64
        return self.pairs or (self.maker == THEIRS and uses_pairs(self))

    @property
    def rows(self) -> int:
        """Query rows of a work tile."""
        of_8_bits = self.dtype in ("e4m3", "e5m2")
        wide = is_wide(self.head_dim, self.head_dim_v or self.head_dim, of_8_bits)
        one_tile = wide or self.q_block % ROWS_A_CTA
        rows = ROWS_A_CTA // 2 if one_tile else ROWS_A_CTA
        return rows * (2 if self.pair else 1)

    @property
    def persistent(self) -> bool:
        """A CTA walks over work tiles."""
        if self.maker == THEIRS:
            return not self.causal and not self.ragged
        return not self.one_block

    @property
    def claims(self) -> bool:
        """A CTA's further work tiles are those that no other has begun."""
        return self.maker != THEIRS and not self.one_block

    @property
    def packed(self) -> bool:
        """Query heads of a group are rows of one tile."""
        return self.maker == THEIRS and self.group > 1

    @property
    def mask(self) -> str:
        """Mask and layouts, in words."""
        words = f"window {self.window}" if self.window else "causal" if self.causal else "full"
        words += f", GQA {self.group}" * (self.group > 1)
        words += ", ragged" * self.ragged
        words += f", pages of {self.page_size}" * (self.page_size > 0)
        words += ", pairs" * self.pairs
        words += f", blocks of {self.q_block} x {KEYS_A_TILE}" * (self.q_block > 0)
        words += f", {self.dtype}" * (self.dtype != "bf16")
        words += "".join(
            f", {name} {getattr(value, 'name', value)}" for name, value in self.choices
        )
        return words + ", one block a CTA" * self.one_block

    def __str__(self):
        """Unchanged since the first tables: used in names of files and tests."""
        what = self.mask.replace("GQA ", "gqa").replace(",", "")
        depths = f"{self.head_dim}/{self.head_dim_v}" if self.head_dim_v else str(self.head_dim)
        what += ", in parts" * self.in_parts
        what += f" {self.arch}" * (self.arch != "sm_100a")
        return f"{self.maker} d{depths} {what}"


@dataclass
class Kernel:
    """A compiled kernel with the traces of its workloads."""

    variant: Variant
    ptx: str
    cubin: bytes
    code: control_codes.MachineCode
    traces: dict[Workload, trace.Trace]


def load(variant: Variant) -> Kernel:
    """Compile, emulate and disassemble a kernel, or read all that from the cache.

    RuntimeError with the output of the process that failed.
    """
    make = _ours if variant.maker == OURS else _theirs
    found = cache.stored(str(variant), _key(variant), lambda: make(variant))
    ptx, cubin, traces, listing = found
    return Kernel(variant, ptx, cubin, control_codes.read(cubin, listing), traces)


def disassemble(cubin: bytes) -> str:
    """nvdisasm -c of a cubin; NvdisasmError where nvdisasm is missing."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return nvdisasm.disassemble(Path(file.name))


def traced(variant: Variant, works: list[Workload]) -> Kernel:
    """Our kernel with the traces of a few workloads, compiled now: nothing of it is cached."""
    cubin = our_kernel.cubin(variant)
    ptx, traces = our_kernel.trace_kernel(variant, works)
    return Kernel(variant, ptx, cubin, control_codes.read(cubin, disassemble(cubin)), traces)


def _ours(variant: Variant) -> tuple:
    cubin = our_kernel.cubin(variant)

    def make():
        ptx, traces = our_kernel.trace_kernel(variant, workloads_of(variant))
        return ptx, cubin, traces, disassemble(cubin)

    return cache.stored(str(variant), cache.key(cubin, *_recorder("our_kernel.py")), make)


def _theirs(variant: Variant) -> tuple:
    """A kernel of PACKAGES, in a separate process (flash_attn_4.py says why)."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "kernel.pickle"
        what = json.dumps(asdict(variant))
        module = f"benchmarks.cycle_model.{PACKAGES[variant.maker][1]}"
        command = [sys.executable, "-m", module, str(out), what, "--arch", variant.arch]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if result.returncode or not out.exists():
            raise RuntimeError(f"{' '.join(command)} failed:\n{result.stdout}\n{result.stderr}")
        ptx, cubin, traces = pickle.loads(out.read_bytes())
    return ptx, cubin, traces, disassemble(cubin)


def _recorder(maker: str) -> list[Path]:
    own = Path(__file__).parent
    return [Path(trace.__file__), own / "workloads.py", own / maker]


def _key(variant: Variant) -> str:
    compiler = f"{importlib.metadata.version('nvidia-cutlass-dsl')} {toolkit.flavour()}"
    if variant.maker in PACKAGES:
        distribution, module = PACKAGES[variant.maker]
        version = importlib.metadata.version(distribution)
        return cache.key(version, compiler, *_recorder(f"{module}.py"))
    files = kernel_sources(ROOT / "cute_fa4")
    return cache.key(compiler, *_recorder("our_kernel.py"), *files)
