"""What users import stays where it is, whatever moves inside the package."""

import subprocess
import sys
from importlib import import_module

import pytest

from cute_fa4 import emulator, sm100

# module -> names that users take from it. A name leaves this list with a deprecation, not with a move.
PUBLIC = {
    "cute_fa4": (
        *("flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"),
        *("BlockSparseTensors", "block_mask", "flex_attention", "interval_mask"),
        *("scaled_dot_product_attention", "capabilities", "Capability", "FA4Config", "warmup"),
        *("configs_for_model", "EmulatorWarning", "JitError", "JitWarning"),
        *("aot", "indexer", "masks", "score_mods"),
    ),
    "cute_fa4.indexer": (
        *("fp8_mqa_logits", "fp8_paged_mqa_logits", "topk_indices", "cache_indices"),
    ),
    "cute_fa4.interface": ("flash_attn_func", "EmulatorWarning"),
    "cute_fa4.masks": ("causal", "window", "chunked", "chunked_causal", "both", "either", "full"),
    "cute_fa4.score_mods": ("ScoreMod", "soft_cap", "alibi", "additive_bias", "relative_logits"),
    "cute_fa4.aot": ("export", "load", "read_catalogue", "LoadError", "ExportError"),
    "cute_fa4.distributed": (
        *(
            "context_parallel_attention",
            "decode_attention",
            "local_lengths",
            "merge",
            "shard",
            "unshard",
            "positions",
        ),
        *("RankError", "GroupError"),
    ),
    "cute_fa4.compile_cache": ("function_for", "warmup", "statistics", "clear"),
    "cute_fa4.emulator": ("compile", "use", "compare", "last_run", "KernelLabels"),
    "cute_fa4.reference": ("attention_float64",),
}


@pytest.mark.parametrize("path, name", [(m, n) for m, names in PUBLIC.items() for n in names])
def test_a_public_name_is_where_it_was(path, name):
    assert getattr(import_module(path), name) is not None


MOVED = sm100.MOVED | emulator.MOVED
# Former path -> a name that users took from it. These paths go with the next minor version.
FORMER = {
    "cute_fa4.sm100.config": "FA4Config",
    "cute_fa4.sm100.choose_config": "choose_config",
    "cute_fa4.sm100.masks": "ChunkedCausal",
    "cute_fa4.sm100.score_mods": "soft_cap",
    "cute_fa4.sm100.mha2q.kernel": "SM100MHA2Q",
    "cute_fa4.emulator.coverage": "collect",
    "cute_fa4.emulator.errors": "EmulatorError",
    "cute_fa4.emulator.trace": "record",
}


@pytest.mark.parametrize("path, name", FORMER.items())
def test_a_former_path_says_where_the_module_is_now(path, name):
    sys.modules.pop(path, None)
    with pytest.warns(DeprecationWarning, match=f"{path} moved to {MOVED[path]}"):
        former = import_module(path)
    assert getattr(former, name) is getattr(import_module(MOVED[path]), name)


@pytest.mark.parametrize("path", ["cute_fa4", "cute_fa4.sm100.choose.config", "cute_fa4.aot"])
def test_configurations_and_kernels_from_files_need_no_compiler(path):
    """A service that only loads kernels must not pay for, or even have, the compiler."""
    code = f"import sys, {path}; sys.exit('cutlass' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
