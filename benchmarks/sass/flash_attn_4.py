"""Configuration -> cubin of flash-attn-4, compiled without a GPU.

    python -m benchmarks.sass.flash_attn_4 OUT.cubin --head-dim 128 --causal

A process of its own, because the package reads the architecture and the number of SMs from the
environment when it is imported, and asks a driver for the latter unless it is told not to. Nothing
of the package is changed: it is called as its users call it, with tensors that have no data.

Needs flash-attn-4 (the extra `compare` of this project).
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

# B200. The kernel's grid depends on it, not its loops.
SM_COUNT = 148
# Long enough for several key tiles; the kernel is compiled for any length.
SEQLEN = 1024


class HardwareWithoutDriver:
    """Stands in for cutlass.utils.HardwareInfo, which needs a driver."""

    def __init__(self, *_args, **_kwargs):
        pass

    def get_device_multiprocessor_count(self) -> int:
        return SM_COUNT

    def get_max_active_clusters(self, cluster_size: int) -> int:
        return SM_COUNT // cluster_size


class KeepCubins:
    """cutlass.cute as the package sees it, with a compile() that keeps what it compiled."""

    def __init__(self, cute):
        self._cute = cute
        self.cubins: list[bytes] = []

    def __getattr__(self, name):
        return getattr(self._cute, name)

    def compile(self, *args, options: str | None = None, **kwargs):
        # --keep also writes a file, into the working directory unless told otherwise.
        with tempfile.TemporaryDirectory() as folder:
            options = f"{options or ''} --keep-cubin --dump-dir={folder}".strip()
            compiled = self._cute.compile(*args, options=options, **kwargs)
            self.cubins.append(compiled.__cubin__)
            return compiled


def compile_cubin(head_dim: int, dtype: str, causal: bool, arch: str) -> bytes:
    """The forward kernel of flash_attn_func(q, k, v, causal=causal).

    Must be the first thing in the process that imports cutlass or flash_attn.
    """
    os.environ["FLASH_ATTENTION_ARCH"] = arch.removesuffix("a")
    os.environ["CUTE_DSL_ARCH"] = arch
    os.environ["FLASH_ATTENTION_NUM_SMS"] = str(SM_COUNT)

    import cutlass.cute
    import cutlass.utils
    import cutlass.utils.hardware_info
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    cutlass.utils.HardwareInfo = HardwareWithoutDriver
    cutlass.utils.hardware_info.HardwareInfo = HardwareWithoutDriver

    import flash_attn.cute.interface as interface

    interface.cute = keep = KeepCubins(cutlass.cute)
    torch_dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    launch_error = None
    with FakeTensorMode():
        shape = (1, SEQLEN, 4, head_dim)
        q, k, v = (torch.empty(shape, dtype=torch_dtype, device="cuda") for _ in range(3))
        try:
            interface.flash_attn_func(q, k, v, causal=causal)
        except Exception as error:  # the launch that follows the compile has no GPU
            launch_error = error
    if len(keep.cubins) != 1:
        raise RuntimeError(
            f"flash-attn-4 compiled {len(keep.cubins)} kernels, expected 1"
        ) from launch_error
    return keep.cubins[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--dtype", choices=("bf16", "fp16"), default="bf16")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--arch", choices=("sm_100a", "sm_103a"), default="sm_100a")
    args = parser.parse_args()
    args.out.write_bytes(compile_cubin(args.head_dim, args.dtype, args.causal, args.arch))


if __name__ == "__main__":
    main()
