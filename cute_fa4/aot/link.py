"""Host objects of the CuTe DSL -> shared libraries that do not need the compiler.

NAME.o + cuda_runtime.c                  -> NAME.so      TVM-FFI entry; needs libtvm_ffi.so
NAME.o + cuda_runtime.c + plain_c.c      -> NAME_c.so    C entry; needs no library
"""

from __future__ import annotations

from pathlib import Path

from cute_fa4.system import c_compiler

HERE = Path(__file__).parent
# sm_90a: kernels without tensor core, and those that cute_fa4.hopper rewrites.
COMPUTE_CAPABILITY = {"sm_90a": (9, 0), "sm_100a": (10, 0), "sm_103a": (10, 3)}

# The compiler's default is the first x86-64; said here so that a configured -march cannot leak in.
_PORTABLE = {"x86_64": ("-march=x86-64",)}
_FLAGS = ("-O2", "-fPIC", "-std=gnu11", "-Wall", "-Werror")


def link(host_object: Path, output: Path, arch: str, *, plain_c: bool = False) -> Path:
    """Link one host object. Raises EmulatorError when there is no C compiler or it fails."""
    inputs = [host_object, _own_object("cuda_runtime", capability_flags(arch))]
    flags: tuple[str, ...] = ()
    if plain_c:
        inputs.append(_own_object("plain_c", ()))
        # A program may link several kernels: each has these under its own name.
        aliases = (
            f"{host_object.stem}_{name}=cute_fa4_{name}" for name in ("use_stream", "last_error")
        )
        flags = tuple(f"-Wl,--defsym,{alias}" for alias in aliases)
    return link_objects(inputs, output, flags, tvm_ffi=not plain_c)


def link_objects(inputs, output: Path, flags=(), *, tvm_ffi: bool = True) -> Path:
    """Objects -> a shared library with the flags of every exported one."""
    inputs = list(inputs)
    if tvm_ffi:
        from tvm_ffi.libinfo import find_libtvm_ffi

        inputs.append(find_libtvm_ffi())
    # -z defs: an undefined function is an error here and not at the first call. No build id and no
    # path of this machine: the same inputs give the same bytes.
    flags = (
        *flags,
        f"-Wl,-soname,{output.name}",
        "-Wl,-Bsymbolic",
        "-Wl,-z,defs",
        "-Wl,--build-id=none",
        "-ldl",
        "-lpthread",
        "-lm",
    )
    return c_compiler.link_shared_library(output, inputs, flags)


def _own_object(name: str, flags: tuple) -> Path:
    return build_object(f"aot-{name}", (HERE / f"{name}.c").read_text(), flags)


def build_object(name: str, source: str, flags: tuple = ()) -> Path:
    """C source -> an object for any processor of this kind, kept in the cache."""
    import platform

    portable = _PORTABLE.get(platform.machine(), ())
    return c_compiler.build_object(name, source, (*_FLAGS, *portable, *flags))


def capability_flags(arch: str) -> tuple:
    """Definitions for cuda_runtime.c about the target architecture of a kernel."""
    major, minor = COMPUTE_CAPABILITY[arch]
    return (f"-DCUTE_FA4_MAJOR={major}", f"-DCUTE_FA4_MINOR={minor}", f'-DCUTE_FA4_ARCH="{arch}"')
