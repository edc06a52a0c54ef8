"""ptxas and nvcc, where they are installed."""

import importlib.util
from pathlib import Path

import pytest

from cute_fa4.hopper import toolkit


def ptxas() -> str | None:
    """The toolkit's, or the one that comes with triton, which torch brings."""
    try:
        return toolkit.find("ptxas")
    except toolkit.ToolkitError:
        spec = importlib.util.find_spec("triton")
        path = spec and Path(spec.origin).parent / "backends" / "nvidia" / "bin" / "ptxas"
        return str(path) if path and path.exists() else None


@pytest.fixture(scope="session")
def assemble(tmp_path_factory):
    """assemble(ptx) -> what ptxas says of it as a relocatable object for sm_90a: "" if it is accepted."""
    import subprocess

    tool, folder = ptxas(), tmp_path_factory.mktemp("ptxas")
    if tool is None:
        pytest.skip("no ptxas: pip install 'cute-fa4[hopper]'")

    def run(ptx: str) -> str:
        (folder / "kernel.ptx").write_text(ptx)
        command = [tool, "-arch=sm_90a", "-c", "kernel.ptx", "-o", "kernel.o"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        return done.stderr if done.returncode else ""

    return run


@pytest.fixture
def needs_nvcc():
    try:
        toolkit.find("nvcc")
    except toolkit.ToolkitError as error:
        pytest.skip(str(error))
