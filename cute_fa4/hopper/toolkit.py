"""nvcc, ptxas and nvlink: from the Python packages of the extra `hopper`, else from a CUDA toolkit on the PATH.

pip install 'cute-fa4[hopper]'     ->  site-packages/nvidia/cu13/bin/nvcc
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from functools import cache
from pathlib import Path


class ToolkitError(RuntimeError):
    """A CUDA tool is missing, or it refused its input; the text is the tool's message."""


@cache
def find(tool: str) -> str:
    """Path of nvcc, ptxas or nvlink; without one, ToolkitError says what to install."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec and spec.submodule_search_locations) or ():
        for found in sorted(Path(folder).glob(f"cu1*/bin/{tool}"), reverse=True):
            return str(found)
    path = shutil.which(tool)
    if path is None:
        raise ToolkitError(
            f"{tool} is missing; accepted: CUDA 12.9 or newer; pip install 'cute-fa4[hopper]', or put a CUDA "
            "toolkit on the PATH"
        )
    return path


def run(tool: str, *arguments) -> str:
    """Run a tool; its output, or ToolkitError with it."""
    done = subprocess.run(
        [find(tool), *map(str, arguments)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ToolkitError(f"{tool} failed:\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout + done.stderr


@cache
def version() -> str:
    """The version of ptxas, such as "13.2.86"."""
    return run("ptxas", "--version").partition(", V")[2].split()[0]
