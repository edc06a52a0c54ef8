"""python -m cute_fa4 export: kernels of a catalogue, a model or one configuration, as a directory or as a wheel.

The flags are printed from the tables of aot/entry.py: what a catalogue may say, a command line may, too.

    --hf-config config.json --page-size 16         the [[model]]s of a transformers model
    --head-dim 128 --heads-q 32 --heads-kv 8       a [[model]]
    --head-dim 128 --causal                        one [[config]]
    --kernel append --head-dim 128 --page-size 16  one [[append]]
    --kernel combine --head-dim 128                one [[combine]]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from cute_fa4.aot import entry, exporter
from cute_fa4.aot.manifest import ExportError
from cute_fa4.system import forks, progress

_scratch = forks.ScratchDirectory("cute_fa4-export-")
_TYPES = {"number": int, "numbers": int, "real": float}
SECONDS = 3  # a kernel takes, about
_LISTS = ("numbers", "texts", "switches", "windows")
_ALIASES = {"qkv_dtype": ("--dtype",), "write_lse": ("--lse",)}
_TITLES = {
    "config": "one configuration instead of a catalogue",
    "model": "the configurations of a model instead of a catalogue (with --heads-q and --heads-kv)",
    "append": "one kernel that writes new rows to a cache (--kernel append)",
    "combine": "one kernel that merges parts (--kernel combine)",
}
# Flags of several kinds stand once, in the first group that has them; a model's dtype is the flag of qkv_dtype.
_ELSEWHERE = {"model": ("dtype", "sink"), "append": ("dtype",), "config": (), "combine": ()}


def add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--out", metavar="DIR", help="created; required but for --list and --wheel"
    )
    command.add_argument(
        "--wheel",
        metavar="DIR",
        help="also write a wheel of the kernels there, which cute_fa4.aot.load() finds when it is installed",
    )
    command.add_argument("--name", help="of the wheel; default: that of the catalogue")
    command.add_argument(
        "--catalogue",
        metavar="FILE",
        help="TOML file, or the name of a shipped one: serving; default: none, give --head-dim",
    )
    command.add_argument(
        "--model",
        action="append",
        metavar="NAME",
        help="only this set of the catalogue; may be repeated; default: all sets",
    )
    command.add_argument(
        "--hf-config",
        metavar="FILE",
        help="config.json of a transformers model: heads, depths, windows, sinks, soft cap, MLA; with --page-size, "
        "--kv-dtype, --tensor-parallel, and flags of a model, which override what it says",
    )
    command.add_argument(
        "--tensor-parallel",
        type=int,
        metavar="GPUS",
        help="with --hf-config: GPUs that share the heads; default: 1",
    )
    command.add_argument(
        "--list",
        action="store_true",
        help="print the names of the kernels and stop; default: export them",
    )
    command.add_argument("--host-target", default="x86-64-v2", help="default: x86-64-v2")
    command.add_argument("--arch", choices=("sm_100a", "sm_103a"), help="default: sm_100a")
    command.add_argument(
        "--kernel",
        choices=("attention", "append", "combine"),
        default="attention",
        help="of one configuration; default: attention",
    )
    seen = {"arch"}
    for kind, title in _TITLES.items():
        group = command.add_argument_group(title)
        for name, field in entry.KINDS[kind].items():
            if name not in seen and name not in _ELSEWHERE[kind]:
                seen.add(name)
                _add_flag(group, name, field)
    command.set_defaults(run=run)


def _add_flag(group, name: str, field: entry.Field) -> None:
    flags = (f"--{name.replace('_', '-')}", *_ALIASES.get(name, ()))
    how = {"dest": name, "default": None, "help": field.help}
    if name == "sink":
        how |= {"nargs": "?", "const": True, "metavar": "DTYPE"}
        how["help"] = "learnable_sink, of this dtype: f32, bf16 or fp16; default: off"
    elif name == "packed":
        how |= {"action": "store_true", "default": None}
        how["help"] = "packed queries and keys, or packed new rows; default: dense"
    elif field.kind == "switch":
        how["action"] = argparse.BooleanOptionalAction
    elif field.kind == "aux":
        how |= {"action": "append", "type": _aux, "metavar": "DTYPE:RANK"}
    else:
        how["metavar"] = name.rpartition("_")[2].upper()
        how["type"] = {"windows": _window, "switches": _switch}.get(
            field.kind, _TYPES.get(field.kind, str)
        )
        how["nargs"] = "+" if field.kind in _LISTS else None
    group.add_argument(*flags, **how)


def _aux(text: str) -> list:
    dtype, colon, rank = text.partition(":")
    if not colon or not rank.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r}; accepted: DTYPE:RANK, as f32:4")
    return [dtype, int(rank)]


def _window(text: str) -> list:
    left, colon, right = text.partition(":")
    sides = [side.isdigit() or not side for side in (left, right)]
    if text == "full":
        return []
    if not colon or not all(sides):
        raise argparse.ArgumentTypeError(
            f"{text!r}; accepted: LEFT:RIGHT, as 1023:0, either of them empty for an open side, or full"
        )
    return [int(side) if side else -1 for side in (left, right)]


def _switch(text: str) -> bool:
    if text not in ("false", "true"):
        raise argparse.ArgumentTypeError(f"{text!r}; accepted: false, true")
    return text == "true"


def run(options) -> int:
    from cute_fa4 import aot

    configs = configs_of(options)
    if options.list:
        print("\n".join(config.name for config in configs))
        seconds = _minutes(SECONDS * len(configs))
        print(f"{len(configs)} kernels, about {seconds} to export", file=sys.stderr)
        return 0
    if not options.out and not options.wheel:
        raise ExportError(
            "--out: not given; accepted: a directory for the kernels, or --wheel DIR, or --list"
        )
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=_scratch.path()) as scratch:
        out = Path(options.out or scratch)
        _say_what_is_there(configs, out)
        with progress.bar(len(configs), "compiling", "kernel") as step:

            def report(done: int, total: int, name: str) -> None:
                if done:
                    step()
                    progress.say(f"    {_size(out, configs[done - 1].name)}")
                if done < total:
                    spent = time.perf_counter() - begin
                    left = spent / done * (total - done) if done else SECONDS * total
                    progress.say(f"[{done + 1}/{total}] {name}, {_minutes(left)} left")

            aot.export(configs, out, host_target=options.host_target, progress=report)
        seconds = time.perf_counter() - begin
        if options.out:
            print(f"{len(configs)} kernels in {options.out}, {seconds:.1f} s")
        if options.wheel:
            from cute_fa4.aot import wheel

            print(wheel.write(out, options.wheel, options.name or _name(options)))
    return 0


def _say_what_is_there(configs: list, out: Path) -> None:
    """Kernels of an earlier export stay: whoever exports into its directory is told."""
    there = exporter.kept(out)
    if there:
        again = len({config.name for config in configs} & set(there))
        progress.say(
            f"{out}: has {len(there)} kernels of an earlier export, which stay, {again} of them written anew; for a "
            "directory of these kernels alone choose another, or remove it first"
        )


def _size(out: Path, name: str) -> str:
    """Of a kernel's files."""
    found = sum(path.stat().st_size for path in (*out.glob(f"{name}.*"), *out.glob(f"{name}_c.so")))
    return f"{found / 1024:,.0f} KiB"


def _minutes(seconds: float) -> str:
    """
    >>> _minutes(59), _minutes(90), _minutes(171)
    ('59 s', '2 min', '3 min')
    """
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds / 60:.0f} min"


def _name(options) -> str:
    given = options.catalogue or options.hf_config
    return Path(given).stem if given else "kernels"


def configs_of(options) -> list:
    """The configurations that the flags ask for; ExportError for flags that do not belong together."""
    from cute_fa4.aot import read_catalogue

    given = {
        name: getattr(options, name)
        for name in {name for table in entry.KINDS.values() for name in table}
        if name != "arch" and getattr(options, name, None) is not None
    }
    sources = options.catalogue is not None, options.hf_config is not None, "head_dim" in given
    if sum(sources) != 1:
        raise ExportError("give one of --catalogue, --hf-config and --head-dim")
    if options.tensor_parallel is not None and options.hf_config is None:
        raise ExportError(
            "--tensor-parallel: without --hf-config, which says how many heads there are"
        )
    if options.hf_config is not None:
        configs = _of_transformers(options, given)
    elif options.catalogue is not None:
        if given:
            raise ExportError(
                f"{_flags(given)}: with --catalogue, whose entries say it; accepted: --arch"
            )
        configs = read_catalogue(options.catalogue, models=options.model and tuple(options.model))
    else:
        kind, said = _entry(given, options.kernel)
        unknown = set(said) - set(entry.KINDS[kind])
        if unknown:
            raise ExportError(f"{_flags(unknown)}: not of {_TITLES[kind]}; --help lists its flags")
        configs = entry.configs_of(kind, said, "export")
    if options.arch is None:
        return configs
    return [exporter.for_arch(config, options.arch) for config in configs]


def _of_transformers(options, given: dict) -> list:
    """The kernels of a transformers model; flags of a model override what its config.json says."""
    from cute_fa4.aot import hf_config

    of_cache = {name: given.pop(name) for name in ("page_size", "kv_dtype") if name in given}
    models = hf_config.models_of(
        options.hf_config, **of_cache, tensor_parallel=options.tensor_parallel or 1
    )
    if "qkv_dtype" in given:
        given["dtype"] = given.pop("qkv_dtype")
    unknown = set(given) - set(entry.KINDS["model"])
    if unknown:
        raise ExportError(f"{_flags(unknown)}: with --hf-config; accepted: flags of a model")
    found = [
        config
        for model in models
        for config in entry.configs_of("model", model | given, options.hf_config)
    ]
    return list(dict.fromkeys(found))


def _flags(names) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in sorted(names))


def _entry(given: dict, kernel: str) -> tuple[str, dict]:
    """-> (kind, entry) of flags; what flags write shorter than a catalogue is written out."""
    said = {name: given[name] for name in sorted(given)}
    dtype = said.pop("qkv_dtype", "bf16")
    if kernel == "append":
        return kernel, {"dtype": dtype, **said}
    if kernel == "combine":
        return kernel, {"o_dtype": dtype, **said}
    if "heads_q" in said or "heads_kv" in said:
        return "model", {"dtype": dtype, **said}
    said["qkv_dtype"] = dtype
    if isinstance(said.get("sink"), str):
        said |= {"sink": True, "sink_dtype": said["sink"]}
    if said.pop("packed", False):
        said = {"q_layout": "packed", "kv_layout": "packed"} | said
    if said.get("page_size") and "kv_layout" not in said:
        said = {"q_layout": "packed", "kv_layout": "paged", "seqused_k": True} | said
    return "config", said
