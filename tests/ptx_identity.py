"""Checks whether a change leaves the PTX of the kernels unchanged, for refactorings.

    python -m tests.ptx_identity digest          compile every variant, write their hashes to tests/ptx_digests.json
    python -m tests.ptx_identity write DIR       before a change: keep the PTX itself in DIR
    python -m tests.ptx_identity compare DIR     after it: compile again, show the first lines that differ

The file of hashes is part of the repository: a commit that changes PTX says so by its diff, and test_ptx_identity.py
holds the kernels to it. Names of kernels are normalised, because they hold a hash of the configuration, and comments
are left out; nothing else is. `compare` exits with 1 where a variant differs, is new or is gone.

The variants (ptx_variants.py) have every rule of sm100/choose/which_kernel.py and every option of the configurations
(test_ptx_identity.py). The kernels of docs/data/modelled.json are among them, so the pages show which of their rows are
of earlier code (benchmarks/cycle_model/recorded.py).
"""

import argparse
import contextlib
import difflib
import json
import re
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path

from benchmarks.cycle_model.recorded import own_kernels
from benchmarks.cycle_model.records import DIGESTS, digest_of, normalised
from cute_fa4.aot.manifest import version_of
from cute_fa4.sm100.append.config import AppendConfig
from cute_fa4.sm100.backward.config import BackwardConfig
from cute_fa4.sm100.choose.choose_config import choose_config
from cute_fa4.sm100.combine.config import CombineConfig
from cute_fa4.sm100.work.lists.config import BlockListsConfig
from cute_fa4.system.frames import with_room
from tests.ptx_variants import (
    APPEND_VARIANTS,
    BACKWARD_VARIANTS,
    COMBINE_VARIANTS,
    LISTS_VARIANTS,
    VARIANTS,
)
from tests.sm100.indexer.variants import VARIANTS as INDEXERS

SHOWN_LINES = 40  # of a difference

MODELLED = own_kernels()
NAMES = (
    *(*VARIANTS, *APPEND_VARIANTS, *COMBINE_VARIANTS, *BACKWARD_VARIANTS, *LISTS_VARIANTS),
    *(*INDEXERS, *MODELLED),
)


@cache
def config_of(name: str):
    """The configuration of a variant."""
    if name in MODELLED:
        return MODELLED[name].config()
    if name in APPEND_VARIANTS:
        return AppendConfig(
            **{"dtype": "bf16", "depth": 128, "depth_v": 128, **APPEND_VARIANTS[name]}
        )
    if name in COMBINE_VARIANTS:
        return CombineConfig(**{"o_dtype": "bf16", "depth": 128, **COMBINE_VARIANTS[name]})
    if name in BACKWARD_VARIANTS:
        return BackwardConfig(
            **{"dtype": "bf16", "depth": 128, "depth_v": 128, **BACKWARD_VARIANTS[name]}
        )
    if name in LISTS_VARIANTS:
        return BlockListsConfig(**LISTS_VARIANTS[name])
    if name in INDEXERS:
        return INDEXERS[name]
    return choose_config(**{"qkv_dtype": "bf16", "head_dim": 128, **VARIANTS[name]})


def first_name_of() -> dict[str, str]:
    """Name -> the first name of the same configuration."""
    first: dict = {}
    return {name: first.setdefault(config_of(name), name) for name in NAMES}


@with_room
def ptx_of(name: str, through_ptxas: bool = False) -> str:
    """The normalised PTX of a variant. through_ptxas: which ptxas has accepted; it does not change by that."""
    import cutlass.cute as cute

    from cute_fa4.compiler.compiler import kernel_and_arguments
    from cute_fa4.emulator.ptx_only import ptx_only

    config = config_of(name)
    kernel, arguments, _ = kernel_and_arguments(config)
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.nullcontext() if through_ptxas else ptx_only(),
    ):
        options = f"--enable-tvm-ffi --keep-ptx --gpu-arch {config.arch} --dump-dir={folder}"
        ptx = cute.compile(kernel, *arguments, options=options, no_jit_engine=True).__ptx__
    return normalised(ptx)


def compiler_of(ptx: str) -> str:
    """What made it: hashes of another compiler's PTX say nothing of a change."""
    build_id = re.search(r"// Compiler Build ID: (\S+)", ptx)
    return f"nvidia-cutlass-dsl {version_of('nvidia-cutlass-dsl')}, NVVM {build_id and build_id[1]}"


def compile_all(names, processes: int = 2) -> dict[str, str]:
    first = first_name_of()
    compiled = list(dict.fromkeys(first[name] for name in names))
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        found = dict(zip(compiled, pool.map(ptx_of, compiled), strict=True))
    return {name: found[first[name]] for name in names}


def _file(directory: Path, name: str) -> Path:
    return directory / (re.sub(r"\W+", "_", name) + ".ptx")


def write(directory: Path) -> int:
    directory.mkdir(parents=True, exist_ok=True)
    for name, ptx in compile_all(NAMES).items():
        _file(directory, name).write_text(ptx)
    print(f"{len(NAMES)} variants in {directory}")
    return 0


def recorded() -> dict:
    """{"compiler": text, "variants": {name: hash}}, as the repository has it."""
    return json.loads(DIGESTS.read_text())


def write_digests() -> int:
    """Compile all, write their hashes, and say how many changed."""
    before = recorded()["variants"] if DIGESTS.exists() else {}
    found = compile_all(NAMES)
    variants = {name: digest_of(ptx) for name, ptx in found.items()}
    compiler = compiler_of(found[NAMES[0]])
    DIGESTS.write_text(json.dumps({"compiler": compiler, "variants": variants}, indent=1) + "\n")
    changed = sum(variants.get(name) != before.get(name) for name in {**variants, **before})
    print(f"{len(variants)} variants in {DIGESTS.name}, {changed} changed")
    return 0


def compare(directory: Path, found: dict[str, str]) -> int:
    """0 where every variant in `directory` is what was found; differences are printed."""
    differing = 0
    for name, ptx in found.items():
        file = _file(directory, name)
        before = file.read_text() if file.exists() else ""
        if ptx == before:
            continue
        differing += 1
        print(f"--- {name}: {'differs' if before else 'is new'}")
        lines = difflib.unified_diff(before.splitlines(), ptx.splitlines(), "before", "after", n=2)
        print("\n".join(line for line, _ in zip(lines, range(SHOWN_LINES), strict=False)))
    gone = {file.name for file in directory.glob("*.ptx")}
    gone -= {_file(directory, name).name for name in found}
    for file in sorted(gone):
        print(f"--- {file}: is gone")
    same = len(found) - differing
    print(f"{same} of {len(found)} variants are the same, {differing} differ, {len(gone)} are gone")
    return int(bool(differing or gone))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("digest", "write", "compare"))
    parser.add_argument("directory", type=Path, nargs="?", help="of the PTX, for write and compare")
    asked = parser.parse_args()
    if (asked.directory is None) != (asked.command == "digest"):
        parser.error("a directory: accepted by write and compare, which need one")
    if asked.command == "digest":
        return write_digests()
    is_write = asked.command == "write"
    return write(asked.directory) if is_write else compare(asked.directory, compile_all(NAMES))


if __name__ == "__main__":
    sys.exit(main())
