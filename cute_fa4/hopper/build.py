"""A compiled CuTe DSL kernel for sm_100a -> NAME.so that runs on a Hopper GPU.

    PTX  --rewrite.py-->  PTX for sm_90a  --ptxas-->  object  --nvlink with tcgen05.cu-->  NAME.cubin
    host object + NAME.cubin + aot/cuda_runtime.c + runtime.c  --cc-->  NAME.so

NAME.so needs libtvm_ffi.so and the driver. No GPU is needed to build it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from cute_fa4.aot import link, manifest
from cute_fa4.hopper import toolkit
from cute_fa4.hopper.ptx_blocks import TARGET
from cute_fa4.hopper.rewrite import rewrite
from cute_fa4.system import forks

HERE = Path(__file__).parent

_scratch = forks.ScratchDirectory("cute_fa4-hopper-")
_WRAPPED = ("_cudaLibraryLoadData", "_cudaLaunchKernelEx")
_REGISTERS, _MOST_A_FUNCTION_USES = 65536, 128


def build(
    configs: Iterable,
    out_dir,
    *,
    progress: Callable[[int, int, str], None] | None = None,
) -> Path:
    """Compile this package's kernels and rewrite them, into out_dir with a manifest. Returns out_dir.

    configs   FA4Configs of choose_config
    progress  called as progress(kernels done, kernels, name) before each and at the end
    """
    from cute_fa4.aot import build as aot_build
    from cute_fa4.aot.config_data import to_data

    out, configs, records = Path(out_dir), list(dict.fromkeys(configs)), []
    for done, config in enumerate(configs):
        if progress:
            progress(done, len(configs), config.name)
        built = aot_build.build(config, config.name)
        record = build_kernel(config.name, built.ptx, built.host_object, out)
        records.append({**record, "config": to_data(config)})
    if progress:
        progress(len(configs), len(configs), "")
    write_manifest(out, records)
    return out


def build_compiled(compiled, name: str, out_dir) -> dict:
    """The same for any function of cute.compile(..., options="--enable-tvm-ffi --keep-ptx"); returns its record.

    The library has the TVM-FFI entry __tvm_ffi_NAME (load.open_function).
    """
    from cute_fa4.aot.build import host_object

    return build_kernel(name, compiled.__ptx__, host_object(compiled, name), Path(out_dir))


def build_kernel(name: str, ptx: str, host_object: bytes, out: Path) -> dict:
    """Write NAME.ptx, NAME.cubin and NAME.so; returns their record for a manifest.

    UnsupportedInstruction if the PTX cannot be rewritten, ToolkitError with the message of ptxas if it refuses the
    result, EmulatorError without a C compiler.
    """
    out.mkdir(parents=True, exist_ok=True)
    rewritten = rewrite(ptx)
    paths = {role: out / f"{name}.{role}" for role in ("ptx", "cubin", "so")}
    paths["ptx"].write_text(rewritten.ptx)
    assemble(rewritten.ptx, rewritten.threads, paths["cubin"])
    link_host(host_object, paths["cubin"], rewritten.scratch_bytes, paths["so"])
    return {
        "name": name,
        "symbol": f"__tvm_ffi_{name}",
        "entry": rewritten.entries[0],
        "arch": TARGET,
        "config": {},
        "files": {
            "library" if role == "so" else role: manifest.file_record(path)
            for role, path in paths.items()
        },
    }


def assemble(ptx: str, threads: int, cubin: Path) -> None:
    """Rewritten PTX and the functions it calls -> cubin. The number of threads of a CTA bounds their registers."""
    with tempfile.TemporaryDirectory(dir=_scratch.path()) as scratch:
        text, kernel = Path(scratch) / "kernel.ptx", Path(scratch) / "kernel.o"
        text.write_text(ptx)
        toolkit.run("ptxas", f"-arch={TARGET}", "-c", text, "-o", kernel)
        functions = _functions(registers_of(threads))
        toolkit.run("nvlink", f"-arch={TARGET}", functions, kernel, "-o", cubin)


def registers_of(threads: int) -> int:
    """Registers per thread of a CTA of this size: an SM assigns warps to its four schedulers in turn.

    >>> registers_of(512), registers_of(576), registers_of(640), registers_of(96)
    (128, 96, 96, 128)
    """
    a_scheduler = -(-threads // 128) * 32
    return min(_MOST_A_FUNCTION_USES, _REGISTERS // 4 // a_scheduler // 8 * 8)


def write_manifest(out: Path, kernels: list[dict]) -> None:
    """manifest.json of a directory, in the format of aot/manifest.py."""
    made = {"target": TARGET, "ptxas": toolkit.version(), "commit": commit()}
    content = {"versions": manifest.versions(), **made, "kernels": kernels}
    manifest.write_manifest(out, content)


@cache
def commit() -> str:
    """The commit of the source tree, followed by "+" if files differ; otherwise the version."""
    import subprocess

    def git(*arguments):
        command = ["git", "-C", str(HERE), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", str(HERE.parent))
        return git("rev-parse", "--short", "HEAD") + "+" * bool(changed)
    except (OSError, subprocess.CalledProcessError):
        return manifest.versions()["cute_fa4"]


@cache
def _functions(registers: int) -> Path:
    """tcgen05.cu as an object to link, for kernels with this number of registers per thread."""
    scratch = tempfile.TemporaryDirectory(dir=_scratch.path())
    _kept.append(scratch)
    out = Path(scratch.name) / "tcgen05.o"
    architecture = f"-gencode=arch=compute_{TARGET[3:]},code={TARGET}"
    source = HERE / "tcgen05.cu"
    options = ("-std=c++17", architecture, "-rdc=true", f"-maxrregcount={registers}")
    toolkit.run("nvcc", *options, "-c", source, "-o", out)
    return out


_kept: list = []


def _cubin_source(cubin: Path, scratch_bytes: int) -> str:
    """Assembly that embeds the cubin and the size of its scratch memory in the library."""
    return f"""
        .section .rodata
        .global cute_fa4_hopper_cubin, cute_fa4_hopper_scratch_bytes
        .hidden cute_fa4_hopper_cubin, cute_fa4_hopper_scratch_bytes
        .balign 64
cute_fa4_hopper_cubin:
        .incbin "{cubin}"
        .balign 4
cute_fa4_hopper_scratch_bytes:
        .long {scratch_bytes}
        .section .note.GNU-stack,"",@progbits
"""


def link_host(host_object: bytes, cubin: Path, scratch_bytes: int, output: Path) -> None:
    """Host code of the compiler, a cubin and the runtime -> a shared library with a TVM-FFI entry."""
    source = (link.HERE / "cuda_runtime.c").read_text() + (HERE / "runtime.c").read_text()
    runtime = link.build_object("hopper-runtime", source, link.capability_flags(TARGET))
    wrap = [f"-Wl,--wrap={name}" for name in _WRAPPED]
    with tempfile.TemporaryDirectory(dir=_scratch.path()) as scratch:
        host, data = Path(scratch) / "host.o", Path(scratch) / "cubin.S"
        host.write_bytes(host_object)
        data.write_text(_cubin_source(cubin.resolve(), scratch_bytes))
        link.link_objects((host, runtime, data), output, wrap)
