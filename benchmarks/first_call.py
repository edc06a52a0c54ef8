"""Seconds from aot.load to the end of the first call, compared with compiling the same kernel; fresh processes.

    python benchmarks/first_call.py

The launch is stubbed: examples/aot_cpp/recording_driver.c replaces the driver, so this is host time only. The
tensors are CPU tensors that claim to be CUDA tensors. Three runs of each; the target is 0.1 s on a 2-core CPU.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

MEASURE = """
import sys, time
import torch
from cute_fa4 import compile_cache
from cute_fa4.emulator import as_cuda
from cute_fa4.calls.attention import config_for                     # as a service has imported it
from cute_fa4 import masks
q = torch.zeros(1, 512, 8, 128, dtype=torch.bfloat16)
tensors = [as_cuda(torch.zeros_like(q)) for _ in range(4)]
begin = time.perf_counter()
if sys.argv[1] != "compile":
    from cute_fa4 import aot
    aot.load(sys.argv[1])
loaded = time.perf_counter()
config = config_for(qkv_dtype="bf16", head_dim=128, mask=masks.Causal())
function = compile_cache.function_for(config, "cuda")
if sys.argv[1] != "compile":                                # the compiler's own runtime takes no stubbed driver
    function(*tensors, None, 0.088, *[None] * 6, 0, *[None] * 7)
first = time.perf_counter()
print(loaded - begin, first - loaded)
"""


def main() -> None:
    sys.path.insert(0, str(ROOT))
    from cute_fa4 import aot
    from cute_fa4.sm100.choose.choose_config import choose_config

    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        kernels = aot.export(
            [choose_config(qkv_dtype="bf16", head_dim=128, causal=True)], scratch / "kernels"
        )
        driver = ROOT / "examples" / "aot_cpp" / "recording_driver.c"
        command = ["cc", "-shared", "-fPIC", str(driver), "-o", str(scratch / "libcuda.so.1")]
        subprocess.run(command, check=True)
        env = {**os.environ, "PYTHONPATH": str(ROOT), "CUTE_FA4_CACHE": "off"}
        print(f"{'':10} {'load (s)':>9} {'first call (s)':>14}")
        for name, argument in (("exported", kernels), ("compiled", "compile")):
            here = env | ({"LD_LIBRARY_PATH": str(scratch)} if name == "exported" else {})
            for _ in range(3):
                run = [sys.executable, "-c", MEASURE, str(argument)]
                out = subprocess.run(
                    run, env=here, check=True, capture_output=True, text=True
                ).stdout
                load, first = map(float, out.split())
                print(f"{name:10} {load:9.3f} {first:14.3f}")


if __name__ == "__main__":
    main()
