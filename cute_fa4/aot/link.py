"""Host objects of the CuTe DSL -> shared libraries that need nothing of the compiler.

NAME.o + cuda_runtime.c                  -> NAME.so      TVM-FFI entry; needs libtvm_ffi.so
NAME.o + cuda_runtime.c + plain_c.c      -> NAME_c.so    C entry; needs no library
"""

from __future__ import annotations

from pathlib import Path

from cute_fa4.system import c_compiler

HERE = Path(__file__).parent
COMPUTE_CAPABILITY = {"sm_100a": (10, 0), "sm_103a": (10, 3)}

# The compiler's default is the first x86-64; said here so that a configured -march cannot leak in.
_PORTABLE = {"x86_64": ("-march=x86-64",)}
_FLAGS = ("-O2", "-fPIC", "-std=gnu11", "-Wall", "-Werror")


def link(host_object: Path, output: Path, arch: str, *, plain_c: bool = False) -> Path:
    """Link one host object. Raises EmulatorError when there is no C compiler or it fails."""
    inputs = [host_object, _object("cuda_runtime", _capability_flags(arch))]
    flags = ()
    if plain_c:
        inputs.append(_object("plain_c", ()))
        # A program may link several kernels: each has these under a name of its own.
        aliases = (
            f"{host_object.stem}_{name}=cute_fa4_{name}" for name in ("use_stream", "last_error")
        )
        flags = tuple(f"-Wl,--defsym,{alias}" for alias in aliases)
    else:
        import tvm_ffi.libinfo

        inputs.append(tvm_ffi.libinfo.find_libtvm_ffi())
    # -z defs: a function that nobody defines shows here and not at the first call. No build id and no
    # path of this machine: the same inputs give the same bytes.
    flags += (
        f"-Wl,-soname,{output.name}",
        "-Wl,-Bsymbolic",
        "-Wl,-z,defs",
        "-Wl,--build-id=none",
        "-ldl",
        "-lpthread",
        "-lm",
    )
    return c_compiler.link_shared_library(output, inputs, flags)


def _object(name: str, flags: tuple) -> Path:
    import platform

    portable = _PORTABLE.get(platform.machine(), ())
    source = (HERE / f"{name}.c").read_text()
    return c_compiler.build_object(f"aot-{name}", source, (*_FLAGS, *portable, *flags))


def _capability_flags(arch: str) -> tuple:
    major, minor = COMPUTE_CAPABILITY[arch]
    return (f"-DCUTE_FA4_MAJOR={major}", f"-DCUTE_FA4_MINOR={minor}", f'-DCUTE_FA4_ARCH="{arch}"')
