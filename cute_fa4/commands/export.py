"""python -m cute_fa4 export and export-kernel: kernels of models, or one kernel, as a directory or as a wheel.

    export --hf-config config.json --page-size 16         a transformers model
    export --head-dim 128 --heads-q 32 --heads-kv 8       a [[model]]
    export --catalogue FILE                               sets of kernels
    export-kernel --head-dim 128 --causal                 one [[config]]
    export-kernel --kernel append --head-dim 128          one [[append]]
    export-kernel --kernel combine --head-dim 128         one [[combine]]
    export-kernel --kernel backward --head-dim 128        one [[backward]]
    export-kernel --kernel indexer --heads 64             one [[indexer]]
    export-kernel --kernel topk                           one [[topk]]

The flags are generated from the tables of aot/entry_fields.py: every field of a catalogue entry is also a flag.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from cute_fa4.aot import entry, exporter
from cute_fa4.aot.entry_fields import KINDS, TITLES, Field
from cute_fa4.aot.manifest import ExportError
from cute_fa4.system import forks, progress

_scratch = forks.ScratchDirectory("cute_fa4-export-")
_TYPES = {"number": int, "numbers": int, "real": float}
SECONDS = 3  # per kernel, approximately
_LISTS = ("numbers", "texts", "switches", "windows")
_ALIASES = {"qkv_dtype": ("--dtype",), "write_lse": ("--lse",)}
_OF_ONE = tuple(kind for kind in KINDS if kind != "model")  # kinds of a single kernel


def add_options(command: argparse.ArgumentParser) -> None:
    """Flags of export: a catalogue, a transformers model, or a model by flags."""
    _add_output(command)
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
        help="config.json of a transformers model: heads, depths, windows, sinks, soft cap, MLA; flags of a model "
        "override what it says; default: none",
    )
    command.add_argument(
        "--page-size", type=int, metavar="KEYS", help="with --hf-config: of a page; default: 16"
    )
    command.add_argument(
        "--tensor-parallel",
        type=int,
        metavar="GPUS",
        help="with --hf-config: GPUs that share the heads; default: 1",
    )
    _add_kinds(command, "model")
    command.set_defaults(run=run, kernel=None)


def add_options_of_one(command: argparse.ArgumentParser) -> None:
    """Flags of export-kernel: one kernel, field by field."""
    _add_output(command)
    command.add_argument(
        "--kernel",
        choices=("attention", *_OF_ONE[1:]),
        default="attention",
        help="default: attention",
    )
    _add_kinds(command, *_OF_ONE)
    command.set_defaults(run=run, catalogue=None, hf_config=None)


def _add_output(command: argparse.ArgumentParser) -> None:
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
        "--list",
        action="store_true",
        help="print the names of the kernels and stop; default: export them",
    )
    command.add_argument("--host-target", default="x86-64-v2", help="default: x86-64-v2")
    command.add_argument(
        "--tuning",
        metavar="FILE",
        help="choices between kernels, which must also decide for the calls; default: CUTE_FA4_TUNING",
    )
    command.add_argument("--arch", choices=("sm_100a", "sm_103a"), help="default: sm_100a")


def _add_kinds(command: argparse.ArgumentParser, *kinds: str) -> None:
    """A flag for each field; a field of several kinds appears once, in the first group that has it.

    --dtype of one kernel is the short form of --qkv-dtype, and names the `dtype` of every kind.
    """
    taken = {"--arch"}
    for kind in kinds:
        group = command.add_argument_group(TITLES[kind])
        for name, field in KINDS[kind].items():
            flags = (f"--{name.replace('_', '-')}", *_ALIASES.get(name, ()))
            if flags[0] not in taken:
                taken.update(flags)
                _add_flag(group, flags, name, field)


def _add_flag(group, flags: tuple[str, ...], name: str, field: Field) -> None:
    how: dict[str, Any] = {"dest": name, "default": None, "help": field.help}
    if name == "sink" and field.kind == "switch":
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
    if options.tuning is None:
        return _run(options)
    from cute_fa4.sm100.blueprint.tuning import load, using

    with using(load(options.tuning)):
        return _run(options)


def _run(options) -> int:
    from cute_fa4 import aot

    configs = configs_of(options)
    if options.list:
        print("\n".join(config.name for config in configs))
        minutes = _minutes(SECONDS * len(configs))
        print(f"{len(configs)} kernels, about {minutes} to export", file=sys.stderr)
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
    """Warn that kernels of an earlier export stay in the directory."""
    there = exporter.kept(out)
    if there:
        again = len({config.name for config in configs} & set(there))
        progress.say(
            f"{out}: has {len(there)} kernels of an earlier export, which stay, {again} of them written anew; for a "
            "directory of these kernels alone choose another, or remove it first"
        )


def _size(out: Path, name: str) -> str:
    """Total size of a kernel's files."""
    found = sum(path.stat().st_size for path in (*out.glob(f"{name}.*"), *out.glob(f"{name}_c.so")))
    return f"{found / 1024:,.0f} KiB"


def _minutes(seconds: float) -> str:
    """
    >>> _minutes(59), _minutes(90), _minutes(171)
    ('59 s', '2 min', '3 min')
    """
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds / 60:.0f} min"


def _name(options) -> str:
    return Path(options.catalogue).stem if options.catalogue else "kernels"


def configs_of(options) -> list:
    """The configurations that the flags ask for; ExportError for flags that do not belong together."""
    kinds = ("model",) if options.kernel is None else _OF_ONE
    given = {
        name: getattr(options, name)
        for name in {name for kind in kinds for name in KINDS[kind]}
        if name != "arch" and getattr(options, name, None) is not None
    }
    if options.kernel is not None:
        kind, said = _entry(given, options.kernel)
        unknown = set(said) - set(KINDS[kind])
        if unknown:
            raise ExportError(f"{_flags(unknown)}: not of {TITLES[kind]}; --help lists its flags")
        configs = entry.configs_of(kind, said, "export-kernel")
    else:
        configs = _of_models(options, given)
    if options.arch is None:
        return configs
    return [exporter.for_arch(config, options.arch) for config in configs]


def _of_models(options, given: dict) -> list:
    """Configurations of a catalogue, of a transformers model, or of a model by flags."""
    from cute_fa4.aot import read_catalogue

    sources = options.catalogue is not None, options.hf_config is not None, "head_dim" in given
    if sum(sources) != 1:
        raise ExportError(
            "give one of --catalogue, --hf-config and --head-dim with --heads-q and --heads-kv (one kernel: "
            "export-kernel)"
        )
    if options.hf_config is not None:
        return _of_transformers(options, given)
    for name in ("page_size", "tensor_parallel"):
        if getattr(options, name) is not None:
            more = "; accepted: --page-sizes" if name == "page_size" else ""
            raise ExportError(f"{_flags([name])}: without --hf-config{more}")
    if options.catalogue is None:
        return entry.configs_of("model", given, "export")
    if given:
        raise ExportError(
            f"{_flags(given)}: with --catalogue, whose entries say it; accepted: --arch"
        )
    return read_catalogue(options.catalogue, models=options.model and tuple(options.model))


def _of_transformers(options, given: dict) -> list:
    """The kernels of a transformers model; flags override its config.json, in every entry that leaves them open.

    kv_dtype, calls and q_quantize select entries instead.
    """
    from cute_fa4.aot import hf_config

    asked = {name: given.pop(name, None) for name in ("kv_dtype", "calls", "q_quantize")}
    asked["page_size"] = options.page_size or 16
    asked["tensor_parallel"] = options.tensor_parallel or 1
    found = [
        config
        for model in hf_config.models_of(options.hf_config, **asked, given=given)
        for config in entry.configs_of("model", model, options.hf_config)
    ]
    return list(dict.fromkeys(found))


def _flags(names) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in sorted(names))


def _entry(given: dict, kernel: str) -> tuple[str, dict]:
    """-> (kind, entry) of flags; short forms of flags are expanded."""
    said = {name: given[name] for name in sorted(given)}
    if kernel != "attention":
        named = [name for name in ("dtype", "o_dtype") if name in KINDS[kernel]]
        return kernel, {name: said.pop("qkv_dtype", "bf16") for name in named} | said
    said.setdefault("qkv_dtype", "bf16")
    if isinstance(said.get("sink"), str):
        said |= {"sink": True, "sink_dtype": said["sink"]}
    if said.pop("packed", False):
        said = {"q_layout": "packed", "kv_layout": "packed"} | said
    if said.get("page_size") and "kv_layout" not in said:
        said = {"q_layout": "packed", "kv_layout": "paged", "seqused_k": True} | said
    return "config", said
