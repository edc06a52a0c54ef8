"""Ship a compiled kernel: export it, load it in a fresh process that must not compile, call it.

    python examples/06_aot.py                     CPU: the exported kernel's PTX on the emulator
    python examples/06_aot.py --device cuda       the exported cubin on a B200 or B300
    python examples/06_aot.py --keep kernels      keep the directory that a server would get

The second process runs with CUTE_FA4_JIT=error and CUTE_FA4_CACHE=off: a call that needs a kernel that was not
exported is refused, and the error has the configuration to export.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HEAD_DIM, HEADS = 64, 4


def export(directory: Path) -> None:
    """The build machine: needs the compiler, no GPU. The catalogue lists the server's calls."""
    from cute_fa4 import aot, configs_for_model

    configs = configs_for_model(
        head_dim=HEAD_DIM,
        heads_q=HEADS,
        heads_kv=HEADS,
        calls=("dense",),
        return_lse=(True,),
        splits=False,
    )
    begin = time.perf_counter()
    aot.export(configs, directory)
    print(f"exported {len(configs)} configuration(s) in {time.perf_counter() - begin:.1f} s:")
    for path in sorted(directory.iterdir()):
        print(f"  {path.stat().st_size:>9,} {path.name}")


def serve(directory: Path, device: str) -> None:
    """The server: loads, calls, compiles nothing."""
    import torch

    from cute_fa4 import JitError, aot, flash_attn_func
    from cute_fa4.compile_cache import statistics
    from cute_fa4.reference import allowed_error, attention_float64, max_error

    begin = time.perf_counter()
    aot.load(directory)
    print(f"loaded in {time.perf_counter() - begin:.3f} s")

    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 200, HEADS, HEAD_DIM).bfloat16().to(device)
    out, lse = flash_attn_func(q, k, v, causal=True, return_lse=True)
    exact, exact_lse = attention_float64(q, k, v, causal=True)
    allowed = allowed_error(q, k, v, causal=True)
    error, error_lse = max_error(out, exact), max_error(lse, exact_lse)
    print(f"called: out {tuple(out.shape)} off by {error:.1e}, {allowed.out:.1e} is allowed")
    if error > allowed.out or error_lse > allowed.lse:
        raise SystemExit("the error is larger than a correct kernel may have")
    try:
        flash_attn_func(q, k, v, causal=True, window_size=(64, 0))
    except JitError as refusal:
        print("not exported:", str(refusal).splitlines()[0])
    compiled, compiler = statistics().compiles, "cutlass" in sys.modules
    print(f"{compiled} kernels compiled; compiler imported: {compiler}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="cpu (emulator) or cuda; default: cpu")
    parser.add_argument("--keep", metavar="DIR", type=Path, help="default: a temporary directory")
    parser.add_argument("--serve", metavar="DIR", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        return serve(arguments.serve, arguments.device)

    with tempfile.TemporaryDirectory() as scratch:
        directory = arguments.keep or Path(scratch)
        export(directory)
        print("\nin a fresh process:", flush=True)
        command = [sys.executable, __file__, "--serve", str(directory)]
        # Nor kernels of earlier runs, which are not part of a deployment.
        environment = {**os.environ, "CUTE_FA4_JIT": "error", "CUTE_FA4_CACHE": "off"}
        subprocess.run(
            [*command, "--device", arguments.device], env=environment, check=True, timeout=600
        )


if __name__ == "__main__":
    main()
