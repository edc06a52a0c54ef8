"""Kernels compiled ahead of time: export them on any machine, load them where nothing may be compiled.

    from cute_fa4 import aot
    aot.export(aot.configs_for_model(head_dim=128, heads_q=32, heads_kv=8), "kernels/")   # no GPU needed
    aot.load("kernels/")                                                                   # no compiler needed
    aot.load()                                       # what `python -m cute_fa4 export --wheel` made, installed by pip

    NAME.o          host function with a TVM-FFI entry, the cubin inside
    NAME.so         the same, linked: needs libtvm_ffi.so and, when it is called, the driver (libcuda.so.1)
    NAME_c.so, .h   the same with a plain C entry: needs the driver only
    NAME.cubin      NAME.ptx
    manifest.json   configurations as data, versions, parameters, SHA-256 of every file

export imports the compiler when it is called; load, configs_for_model and the configurations never do.
"""

from importlib import import_module

_HOME = {
    "export": "cute_fa4.aot.exporter",
    "load": "cute_fa4.aot.loader",
    "ExportError": "cute_fa4.aot.manifest",
    "LoadError": "cute_fa4.aot.manifest",
    "configs_for_model": "cute_fa4.aot.models",
    "read_catalogue": "cute_fa4.aot.catalogue",
}

__all__ = sorted(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__():
    return sorted({*globals(), *__all__})
