"""PTX text -> cubin, for kernels that come without machine code, through ptxas. It is looked for in this order:

    $PTXAS                  the path of the program
    nvidia-cuda-nvcc        a package; it installs nvidia/cu<major>/bin/ptxas
    triton                  triton/backends/nvidia/bin/ptxas-blackwell, ptxas
    $PATH                   a CUDA toolkit, 12.8 or newer for sm_100

A program that is too old for the text is passed over, so the first that accepts it makes the machine code.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cute_fa4.emulator.model.nvdisasm import installed

REMEDY = "pip install nvidia-cuda-nvcc, or set PTXAS to the path of the program"
_TARGET = re.compile(r"^\s*\.target\s+(\w+)", re.M)


class PtxasError(RuntimeError):
    """ptxas is missing or refused the text; the message says how to go on."""


def candidates() -> Iterator[Path]:
    """Every ptxas there is. PtxasError for $PTXAS that is no file."""
    return installed("ptxas", ("ptxas-blackwell", "ptxas"), PtxasError, REMEDY)


def target(ptx: str) -> str:
    """The .target of a PTX text. PtxasError without one."""
    found = _TARGET.search(ptx)
    if found is None:
        raise PtxasError("the PTX has no .target line, so ptxas cannot be told an architecture")
    return found[1]


def assemble(ptx: str) -> bytes:
    """The cubin of a PTX text, for its .target. PtxasError with what each program says when none accepts it."""
    architecture = target(ptx)
    refused = []
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(ptx)
        for program in candidates():
            command: list[str | Path] = [
                program,
                f"-arch={architecture}",
                "-lineinfo",
                source,
                "-o",
                cubin,
            ]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode == 0:
                return cubin.read_bytes()
            refused.append(f"{program}: {(done.stderr or done.stdout).strip()[:500]}")
    if not refused:
        raise PtxasError(f"ptxas not found in $PTXAS, site-packages and $PATH. {REMEDY}")
    raise PtxasError("no ptxas accepts the PTX:\n  " + "\n  ".join(refused))
