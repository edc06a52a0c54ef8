"""FA4Config -> host object, PTX and cubin: the only step of an export that runs the compiler.

The DSL generates host code for the machine that compiles; `host_target` of the DSL is refused for TVM-FFI functions and
knows no x86. LLVM takes the processor from each function's attributes before that of the machine, so every host
function gets the attributes of the wanted one here (LLVM language reference, "Function Attributes": target-cpu,
target-features; levels: x86-64 psABI, "Micro-Architecture Levels").
"""

from __future__ import annotations

import contextlib
import platform
import tempfile
from dataclasses import dataclass

from cute_fa4.aot.manifest import ExportError
from cute_fa4.compiler import compiler
from cute_fa4.dtypes import NAME_OF_CUTLASS
from cute_fa4.system import forks
from cute_fa4.system.frames import with_room

_V1 = ("sse2",)
_V2 = ("sse4.2", "popcnt", "cx16", "sahf")
_V3 = (*_V2, "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave")
HOST_TARGETS = {"x86-64": _V1, "x86-64-v2": _V2, "x86-64-v3": _V3}
NATIVE = "native"

_scratch = forks.ScratchDirectory("cute_fa4-build-")


@dataclass(frozen=True)
class Built:
    """One compiled configuration. cubin: None for the emulator. parameters: see `describe`."""

    host_object: bytes
    ptx: str
    cubin: bytes | None
    entry: str
    parameters: list


@with_room
def build(
    config, name: str, host_target: str = "x86-64-v2", *, for_emulator: bool = False
) -> Built:
    """Compile; the host object has the entry __tvm_ffi_<name> and otherwise only internal names.

    host_target is one of HOST_TARGETS, or "native". for_emulator: the PTX has line information, and there is no cubin
    and no machine code in the host object. Raises ExportError for another target, and errors of the compiler.
    """
    check_host_target(host_target)
    import cutlass.cute as cute

    from cute_fa4.emulator.ptx_only import ptx_only

    kernel, arguments, _ = compiler.kernel_and_arguments(config)
    with tempfile.TemporaryDirectory(dir=_scratch.path()) as scratch:
        options = [
            "--enable-tvm-ffi",
            "--keep-ptx",
            "--generate-line-info" if for_emulator else "--keep-cubin",
            f"--gpu-arch {config.arch}",
            f"--dump-dir={scratch}",
        ]
        # The compiled function is never called here: without the engine the host code is generated once, for the file.
        with ptx_only() if for_emulator else contextlib.nullcontext():
            compiled = cute.compile(
                kernel, *arguments, options=" ".join(options), no_jit_engine=True
            )
        return Built(
            host_object=host_object(
                compiled, name, host_target, opt_level=0 if for_emulator else 3
            ),
            ptx=compiled.__ptx__,
            cubin=None if for_emulator else compiled.__cubin__,
            entry=next(iter(compiled.kernel_info)),
            parameters=describe(kernel, arguments),
        )


def check_host_target(host_target: str) -> None:
    known = (*HOST_TARGETS, NATIVE)
    if host_target not in known:
        raise ExportError(f"host_target: {host_target!r}; accepted: {', '.join(known)}")
    if host_target != NATIVE and platform.machine() != "x86_64":
        raise ExportError(
            f"host_target: {host_target!r} on a {platform.machine()} machine, whose code the DSL generates; accepted "
            "here: 'native'"
        )


def host_object(
    compiled, name: str, host_target: str = "x86-64-v2", *, opt_level: int = 3
) -> bytes:
    """The host code of a function of cute.compile, with the entry __tvm_ffi_<name>.

    opt_level: 0 compiles in a third of the time, for functions launched once before seconds of emulation.
    """
    from cutlass._mlir import ir
    from cutlass._mlir._mlir_libs._cutlass_ir import _aot_support
    from cutlass.base_dsl.export import get_export_module
    from cutlass.cutlass_dsl import tvm_ffi_provider

    symbol = f"__tvm_ffi_{compiled.function_name}"
    module = get_export_module(
        compiled.ir_module, f"__cute_internal_{name}", preserve_symbols={symbol}
    )
    tvm_ffi_provider.rename_tvm_ffi_function(module, compiled.function_name, name)
    tvm_ffi_provider._inplace_hide_symbols(module, lambda s: not s.startswith("__tvm_ffi"))
    if host_target != NATIVE:
        with module.context:
            cpu = ir.StringAttr.get(host_target)
            listed = ", ".join(f'"+{feature}"' for feature in HOST_TARGETS[host_target])
            features = ir.Attribute.parse(f"#llvm.target_features<[{listed}]>")

            def target(op):
                if op.name == "llvm.func":
                    op.attributes["target_cpu"] = cpu
                    op.attributes["target_features"] = features
                return ir.WalkResult.ADVANCE

            module.operation.walk(target)
    return _aot_support.export_module_to_bytes(
        module, format="o", opt_level=opt_level, enable_pic=True
    )


def describe(kernel, arguments: tuple) -> list:
    """The parameters of the compiled function, in order, as data. The stream is not one: it comes from the caller's
    environment.

    {"name", "kind": "none" | "f32" | "i32"}
    {"name", "kind": "tensor", "dtype", "shape": [name or number or null], "contiguous": bool, "alignment": bytes,
     "stride_multiple": elements}
    {"name", "kind": "tuple", "items": [...]}
    """
    import inspect

    names = [n for n in inspect.signature(type(kernel).__call__).parameters if n != "self"]
    names = names[: len(arguments)]
    return [
        {"name": name, **_describe(value)}
        for name, value in zip(names, arguments, strict=True)
        if name != "stream"
    ]


def _describe(value) -> dict:
    if value is None:
        return {"kind": "none"}
    if isinstance(value, tuple):
        return {"kind": "tuple", "items": [_describe(item) for item in value]}
    if not hasattr(value, "shape"):
        return {"kind": {"Float32": "f32", "Int32": "i32"}[type(value).__name__]}
    strides = [1 if s == 1 else getattr(s, "divisibility", s) for s in value.stride]
    return {
        "kind": "tensor",
        "dtype": NAME_OF_CUTLASS[value.element_type.__name__],
        "shape": [s if isinstance(s, int) else (s.symbol or None) for s in value.shape],
        "contiguous": value.stride[-1] == 1,
        "stride_multiple": min(strides[:-1], default=1),
        "alignment": value._assumed_align,
    }
