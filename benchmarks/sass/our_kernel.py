"""Configuration -> PTX and cubin of cute_fa4's kernel; needs no GPU."""

from __future__ import annotations

import tempfile
from typing import NamedTuple

from cute_fa4.sm100.choose.config import FA4Config


class Artifacts(NamedTuple):
    """The compiled kernel: the PTX for the emulator, the cubin for a GPU."""

    ptx: str
    cubin: bytes


def compile_artifacts(config: FA4Config) -> Artifacts:
    """The PTX and the cubin that flash_attn_func runs for this configuration.

    Raises ValueError with the reasons for a configuration that cute_fa4 refuses.
    """
    import cutlass.cute as cute

    from cute_fa4.compiler.compiler import kernel_and_arguments

    kernel, arguments, _ = kernel_and_arguments(config)
    # --keep also writes files, into the working directory unless told otherwise.
    with tempfile.TemporaryDirectory() as folder:
        options = f"--enable-tvm-ffi --gpu-arch {config.arch} --keep-ptx --keep-cubin"
        compiled = cute.compile(
            kernel,
            *arguments,
            options=f"{options} --dump-dir={folder}",
        )
        return Artifacts(compiled.__ptx__, compiled.__cubin__)
