"""Functions of scores and masks in other processes: found by what they compute, on disk and in loaded kernels."""

import warnings

import torch

from cute_fa4 import EmulatorWarning, flash_attn_func
from cute_fa4.aot import disk_cache
from tests.serving import captures

from .conftest import python
from .test_disk_cache import cache  # noqa: F401  a fixture
from .test_load import WITHOUT_COMPILER

CALL = """
import os, torch
sys.path.insert(0, {root!r})
from cute_fa4 import JitError, aot, compile_cache, flash_attn_func
from cute_fa4.reference import attention_float64
from tests.serving import captures
if len(sys.argv) > 1:
    aot.load(sys.argv[1])
q, k, v = torch.randn(3, 1, 12, 1, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
function, change = captures.WAYS["closure_over_a_module"](9)
try:
    flash_attn_func(q, k, v, mask_mod=function)     # another window, which no process has compiled
    raise SystemExit("computed")
except JitError:
    pass
change(3)
out = flash_attn_func(q, k, v, mask_mod=function)
exact, _ = attention_float64(q, k, v, window_size=(2, 2))
assert (out.double() - exact).abs().max() < 0.02    # bf16 of values around 1, and P in bf16
assert compile_cache.statistics().compiles == 0 and "cutlass" not in sys.modules
"""


def test_another_process_finds_the_kernel_of_the_same_operations_and_no_other(cache, pytestconfig):  # noqa: F811
    """Made through a list, found through a module of torch; the same entry loaded as an exported kernel."""
    q, k, v = torch.randn(3, 1, 12, 1, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    function, _ = captures.WAYS["list_element"](3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EmulatorWarning)
        flash_attn_func(q, k, v, mask_mod=function)
    (entry,) = disk_cache.entries(cache / "kernels")
    code = WITHOUT_COMPILER + CALL.format(root=str(pytestconfig.rootpath))
    python(code, CUTE_FA4_CACHE="on", CUTE_FA4_CACHE_DIR=cache)
    python(code, entry, CUTE_FA4_JIT="error")
