"""Attention for NVIDIA Blackwell in CuTe DSL, and an emulator that runs its PTX on a CPU.

    flash_attn_func   attention: CUDA tensors on a B200, CPU tensors on the emulator
    flash_attn_varlen_func, flash_attn_with_kvcache
                      the same for sequences of different lengths, and for paged caches
    flash_mla_with_kvcache
                      decode from a latent cache (multi-head latent attention), with FlashMLA's interface
    flash_mla_sparse_fwd
                      prefill whose queries list their latent rows, with FlashMLA's interface
    scaled_dot_product_attention, flex_attention
                      the same with torch's interfaces
    BlockSparseTensors, block_mask
                      lists of key blocks for block_sparse_tensors=
    interval_mask     a mask_mod of key intervals of each query
    indexer           scores of keys for sparse attention, with DeepGEMM's interface, and the keys with the highest ones
    masks, score_mods values for mask= and score_mod=
    capabilities      which combinations run, and why the others do not
    mxfp8             quantization to 8 bits with block scales
    nvfp4             quantization to 4 bits with block scales, for caches
    FA4Config         every compile-time choice of the kernel
    aot               kernels compiled ahead of time: export, load
    warmup            compile or load kernels ahead of the first call; configs_for_model lists them

Importing this package imports neither torch nor the compiler: the names load what they need when
first used.
"""

from importlib import import_module
from importlib.util import find_spec

__version__ = "0.1.0"

_emulator = find_spec(f"{__name__}.emulator")
if _emulator is None or _emulator.origin is None:  # None: a folder that an uninstallation left
    raise ImportError(
        f"cute_fa4 {__version__} is installed, but cute_fa4.emulator and cute_fa4.system are not in the same folder; "
        "they are the distribution cute-fa4-emulator: pip install --force-reinstall --no-deps "
        f"cute-fa4-emulator=={__version__}, or from a checkout ./packaging/emulator"
    )

_HOME = {
    "flash_attn_func": "cute_fa4.interface",
    "flash_attn_varlen_func": "cute_fa4.interface",
    "flash_attn_with_kvcache": "cute_fa4.interface",
    "flash_mla_with_kvcache": "cute_fa4.mla",
    "get_mla_metadata": "cute_fa4.mla",
    "flash_mla_sparse_fwd": "cute_fa4.mla_sparse",
    "scaled_dot_product_attention": "cute_fa4.integrations.sdpa",
    "BlockSparseTensors": "cute_fa4.block_sparsity",
    "block_mask": "cute_fa4.block_sparsity",
    "interval_mask": "cute_fa4.intervals",
    "flex_attention": "cute_fa4.integrations.flex",
    "EmulatorWarning": "cute_fa4.calls.launch",
    "capabilities": "cute_fa4.calls.ask.capabilities",
    "Capability": "cute_fa4.calls.ask.capabilities",
    "FA4Config": "cute_fa4.sm100.choose.config",
    "warmup": "cute_fa4.compile_cache",
    "configs_for_model": "cute_fa4.aot.models",
    "JitError": "cute_fa4.compiler.policy",
    "JitWarning": "cute_fa4.compiler.policy",
}

_MODULES = ("aot", "indexer", "masks", "mxfp8", "nvfp4", "score_mods")

__all__ = ["__version__", *_HOME]


def __getattr__(name: str):
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *__all__, *_MODULES})
