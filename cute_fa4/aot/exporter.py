"""export(): configurations -> a directory of kernels that load without the compiler. Needs no GPU."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from cute_fa4.aot import build, c_header, link, manifest
from cute_fa4.aot.config_data import ConfigDataError, to_data
from cute_fa4.aot.manifest import DamagedListError, ExportError, file_record
from cute_fa4.compiler import policy, requirement, toolkit
from cute_fa4.compiler.requirement import CompilerMissingError
from cute_fa4.sm100.blueprint.naming import asked
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.choose.launches import with_conversions

KERNEL_HEADER = "cute_fa4_kernel.h"
UNFINISHED = ".unfinished-"  # begins the name of the folder of a kernel that is being written


def export(
    configs: Iterable,
    out_dir,
    *,
    arch: str | None = None,
    host_target: str = "x86-64-v2",
    progress: Callable[[int, int, str], None] | None = None,
) -> Path:
    """Compile every configuration into out_dir and describe it in out_dir/manifest.json. Returns out_dir.

    configs      FA4Config and AppendConfig (cute_fa4.aot.configs_for_model, read_catalogue); duplicates count once.
                 Kernels that convert lists of key blocks are added where calls of these need them
    out_dir      created; existing kernels stay; one of the same name is replaced when the new one is complete. One
                 process at a time exports into it
    arch         "sm_100a" or "sm_103a" instead of each configuration's own
    host_target  processors that the host code runs on: "x86-64", "x86-64-v2", "x86-64-v3", or "native"
    progress     called as progress(kernels done, kernels, name) before each and at the end

    About three seconds a kernel on one core. Raises ExportError for a configuration that cannot run or cannot be
    written as data, before anything is compiled; EmulatorError without a C compiler.
    """
    build.check_host_target(host_target)
    configs = [
        c if arch is None else for_arch(c, arch)
        for c in with_conversions(configs, policy.dependent_launch())
    ]
    data = [_checked(config) for config in configs]
    if not configs:
        raise ExportError("configs: none; accepted: one or more")
    try:
        requirement.check()
    except CompilerMissingError as error:
        raise ExportError(f"export compiles kernels: {error}") from None
    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    kernels = kept(out, warns=True)
    for left in out.glob(f"{UNFINISHED}*"):  # by an export that was killed
        shutil.rmtree(left)
    manifest.write_atomically(out / KERNEL_HEADER, (link.HERE / "kernel.h").read_bytes())
    if not kernels:
        _write_manifest(out, host_target, kernels)
    for done, (config, as_data) in enumerate(zip(configs, data, strict=True)):
        if progress:
            progress(done, len(configs), config.name)
        with tempfile.TemporaryDirectory(dir=out, prefix=UNFINISHED) as scratch:
            record = export_one(config, as_data, Path(scratch), host_target)
            if kernels.pop(config.name, record)["files"] != record["files"]:
                _write_manifest(out, host_target, kernels)  # before the files change
            for file in record["files"].values():
                os.replace(Path(scratch) / file["path"], out / file["path"])
        kernels[record["name"]] = record
        _write_manifest(out, host_target, kernels)
    if progress:
        progress(len(configs), len(configs), "")
    return out


def _write_manifest(out: Path, host_target: str, kernels: dict) -> None:
    """List only complete kernels, none before the first is: an export that is killed leaves a directory that loads, or
    whose list says why not."""
    content = {
        "host_target": host_target,
        "versions": manifest.versions(),
        "support_files": [file_record(out / KERNEL_HEADER)],
        "kernels": list(kernels.values()),
    }
    manifest.write_manifest(out, content)


def export_one(
    config,
    as_data: dict,
    out: Path,
    host_target: str,
    *,
    for_emulator: bool = False,
    c_entry: bool = True,
) -> dict:
    """Write one kernel's files; returns its record for the manifest. for_emulator: only what the emulator runs."""
    name = config.name
    built = build.build(config, name, host_target, for_emulator=for_emulator)
    paths = {"object": out / f"{name}.o", "ptx": out / f"{name}.ptx"}
    paths["object"].write_bytes(built.host_object)
    paths["ptx"].write_text(built.ptx)
    if built.cubin is not None:
        paths["library"], paths["cubin"] = out / f"{name}.so", out / f"{name}.cubin"
        paths["cubin"].write_bytes(built.cubin)
        link.link(paths["object"], paths["library"], config.arch)
    if c_entry:
        paths["c_library"], paths["c_header"] = out / f"{name}_c.so", out / f"{name}.h"
        link.link(paths["object"], paths["c_library"], config.arch, plain_c=True)
        paths["c_header"].write_text(c_header.header(name, built.parameters, config.arch))
    return {
        "name": name,
        "symbol": f"__tvm_ffi_{name}",
        "entry": built.entry,
        "arch": config.arch,
        "config": as_data,
        "parameters": built.parameters,
        "ptxas": built.cubin and toolkit.ptxas_of(built.cubin),
        "files": {role: file_record(path) for role, path in paths.items()},
    }


def for_arch(config, arch: str):
    """The configuration for another arch; the defaults of its schedule are chosen again."""
    if arch not in link.COMPUTE_CAPABILITY:
        accepted = ", ".join(link.COMPUTE_CAPABILITY)
        raise ExportError(f"arch: {arch!r}; accepted: {accepted}")
    if isinstance(config, FA4Config):
        return replace(config, arch=arch, schedule=asked(config))
    return replace(config, arch=arch)


def _checked(config) -> dict:
    refusals = config.refusals() if hasattr(config, "refusals") else []
    if refusals:
        raise ExportError(f"{config.name} cannot run: " + "; ".join(refusals))
    try:
        return to_data(config)
    except ConfigDataError as error:
        raise ExportError(f"{config.name}: {error}") from None


def kept(out: Path, warns: bool = False) -> dict:
    """Kernels of an earlier export into the same directory, if they are of these versions.

    None if their list is damaged or empty: the new export writes it anew, and warns of it.
    """
    if not (out / manifest.MANIFEST).exists():
        return {}
    try:
        content = manifest.read_manifest(out)
    except DamagedListError as error:
        if warns:
            text = (
                f"{error.problem}; the list is written anew, without kernels of an earlier export"
            )
            warnings.warn(text, RuntimeWarning, stacklevel=3)
        return {}
    if content["versions"] != manifest.versions():
        raise ExportError(
            f"{out}: has kernels of other versions; accepted: an empty directory, or one written by the installed "
            "versions; remove it or choose another"
        )
    return {kernel["name"]: kernel for kernel in content["kernels"]}
