"""Kernel -> machine code and traces, compiled and emulated once and then taken from a cache.

The cache key is the machine code's own source: the files of the kernel and of the emulator for
ours, the package's version for flash-attn-4, and this package's recorder for both. $CUTE_FA4_MODEL_CACHE
names the folder; without it the user's cache folder is taken.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import pickle
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cycle_model import control_codes, our_kernel, trace
from benchmarks.cycle_model.workloads import ROWS_A_CTA, Workload
from benchmarks.sass import nvdisasm

ROOT = Path(__file__).resolve().parents[2]
OURS, THEIRS = "cute_fa4", "flash-attn-4"


@dataclass(frozen=True)
class Variant:
    """Which kernel: its maker and what it is compiled for."""

    maker: str
    head_dim: int = 128
    causal: bool = False
    group: int = 1

    @property
    def pair(self) -> bool:
        """Two CTAs work on one tile together."""
        from benchmarks.cycle_model.flash_attn_4 import uses_pairs

        return self.maker == THEIRS and uses_pairs(self.head_dim, self.causal)

    @property
    def rows(self) -> int:
        """Query rows of a work tile."""
        return ROWS_A_CTA * (2 if self.pair else 1)

    @property
    def persistent(self) -> bool:
        return self.maker == THEIRS and not self.causal

    @property
    def packed(self) -> bool:
        """Query heads of a group are rows of one tile."""
        return self.maker == THEIRS and self.group > 1

    def __str__(self):
        mask = "causal" if self.causal else "full"
        return f"{self.maker} d{self.head_dim} {mask}" + (f" gqa{self.group}" * (self.group > 1))


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
    path = _cache_folder() / f"{str(variant).replace(' ', '_')}-{_key(variant)}.pickle"
    if path.exists():
        ptx, cubin, traces, listing = pickle.loads(path.read_bytes())
    else:
        ptx, cubin, traces = (
            _theirs(variant) if variant.maker == THEIRS else our_kernel.trace_kernel(variant)
        )
        listing = disassemble(cubin)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_bytes(pickle.dumps((ptx, cubin, traces, listing)))
        temporary.replace(path)
    return Kernel(variant, ptx, cubin, control_codes.read(cubin, listing), traces)


def disassemble(cubin: bytes) -> str:
    """nvdisasm -c of a cubin; NvdisasmError where nvdisasm is missing."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return nvdisasm.disassemble(Path(file.name))


def traced(variant: Variant, works: list[Workload]) -> Kernel:
    """Our kernel with the traces of a few workloads, compiled now: nothing of it is cached."""
    ptx, cubin, traces = our_kernel.trace_kernel(variant, works)
    return Kernel(variant, ptx, cubin, control_codes.read(cubin, disassemble(cubin)), traces)


def _theirs(variant: Variant):
    """flash-attn-4, in a process of its own (flash_attn_4.py says why)."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "kernel.pickle"
        command = [sys.executable, "-m", "benchmarks.cycle_model.flash_attn_4", str(out)]
        command += ["--head-dim", str(variant.head_dim), "--group", str(variant.group)]
        command += ["--causal"] if variant.causal else []
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if result.returncode or not out.exists():
            raise RuntimeError(f"{' '.join(command)} failed:\n{result.stdout}\n{result.stderr}")
        return pickle.loads(out.read_bytes())


def _cache_folder() -> Path:
    named = os.environ.get("CUTE_FA4_MODEL_CACHE")
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return Path(named) if named else home / "cute_fa4" / "cycle_model"


def _key(variant: Variant) -> str:
    digest = hashlib.sha256()
    own = Path(__file__).parent
    files = [
        own / name for name in ("trace.py", "workloads.py", "our_kernel.py", "flash_attn_4.py")
    ]
    if variant.maker == OURS:
        package = ROOT / "cute_fa4"
        for folder in ("sm100", "layouts", "tma"):
            files += sorted((package / folder).glob("*.py"))
        files.append(package / "compile_cache.py")
    else:
        digest.update(importlib.metadata.version(THEIRS).encode())
    digest.update(importlib.metadata.version("nvidia-cutlass-dsl").encode())
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
