"""python -m cute_fa4 aot: inspect a directory of exported kernels, without a GPU and without the compiler.

list     one kernel per line
verify   every file against the manifest, and versions: exit status 1 if aot.load would refuse
diff     kernels that only one of two directories has, or that differ: exit status 1 if there are any
show     one kernel: configuration, catalogue entry, parameters, files

The default directory is that of the installed wheels.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from cute_fa4.aot import installed, loader, manifest
from cute_fa4.aot.manifest import LoadError


def add_options(command: argparse.ArgumentParser) -> None:
    actions = command.add_subparsers(required=True, metavar="action")

    action = actions.add_parser("list", help="a kernel a line")
    action.add_argument("--long", action="store_true", help="with bytes and configuration")
    _add_directory(action)
    action.set_defaults(run=list_kernels)

    action = actions.add_parser("verify", help="files, hashes, versions; exit status 1 if wrong")
    _add_directory(action)
    action.set_defaults(run=verify)

    action = actions.add_parser("diff", help="kernels that differ; exit status 1 if any do")
    action.add_argument("first", metavar="DIR")
    action.add_argument("second", metavar="DIR")
    action.set_defaults(run=diff)

    action = actions.add_parser(
        "show", help="configuration, entry, parameters and files of a kernel"
    )
    action.add_argument("name", help="of the kernel, or a part of it, such as its hash")
    _add_directory(action)
    action.set_defaults(run=show)


def _add_directory(action) -> None:
    action.add_argument(
        "directory", nargs="?", metavar="DIR", help="default: the kernels of installed wheels"
    )


def _directories(options) -> list[Path]:
    if options.directory is not None:
        return [Path(options.directory)]
    return [found.directory for found in installed.kernels()]


def list_kernels(options) -> int:
    for directory in _directories(options):
        for kernel in manifest.read_manifest(directory)["kernels"]:
            line = kernel["name"]
            if options.long:
                size = sum(record["bytes"] for record in kernel["files"].values())
                line = f"{size:>9,}  {line}  {_config(directory, kernel)!r}"
            print(line)
    return 0


def _config(directory: Path, kernel: dict):
    return loader.config_of(directory, kernel)


def verify(options) -> int:
    wrong = 0
    for directory in _directories(options):
        problems, kernels = problems_of(directory)
        for problem in problems:
            print(problem, file=sys.stderr)
        wrong += len(problems)
        said = f"{len(problems)} problems" if problems else "as exported, and for this installation"
        print(f"{directory}: {kernels} kernels, {said}")
    return int(wrong > 0)


def problems_of(directory: Path) -> tuple[list[str], int]:
    """-> (reasons for which aot.load would refuse the directory, and files not in the manifest; kernels)."""
    content = manifest.read_manifest(directory)
    problems, known = [], {manifest.MANIFEST, *(r["path"] for r in _support_files(content))}
    path = directory / manifest.MANIFEST
    checks: list[Callable] = [lambda: manifest.check_versions(path, content["versions"])]
    for kernel in content["kernels"]:
        known |= {record["path"] for record in kernel["files"].values()}
        checks.append(partial(loader.verified_config, directory, kernel))
    for check in checks:
        try:
            check()
        except LoadError as error:
            problems.append(str(error))
    for unknown in sorted({p.name for p in directory.iterdir()} - known - installed.OF_A_PACKAGE):
        problems.append(f"{directory / unknown}: not in the manifest; remove it")
    return problems, len(content["kernels"])


def _support_files(content: dict) -> list:
    return content.get("support_files", [])


def diff(options) -> int:
    """Lines as those of diff: `<` in the first only, `>` in the second only, `!` in both, but different."""
    first, second = Path(options.first), Path(options.second)
    a, b = manifest.read_manifest(first), manifest.read_manifest(second)
    lines = [
        f"! {name}: {a['versions'].get(name)} and {b['versions'].get(name)}"
        for name in sorted({**a["versions"], **b["versions"]})
        if a["versions"].get(name) != b["versions"].get(name)
    ]
    if a.get("host_target") != b.get("host_target"):
        lines.append(f"! host_target: {a.get('host_target')} and {b.get('host_target')}")
    ours, theirs = ({k["name"]: k for k in content["kernels"]} for content in (a, b))
    for name in sorted({**ours, **theirs}):
        if name not in theirs:
            lines.append(f"< {name}")
        elif name not in ours:
            lines.append(f"> {name}")
        else:
            roles = _differing_roles(ours[name], theirs[name])
            lines += [f"! {name}: other {', '.join(roles)}"] * bool(roles)
    print("\n".join(lines or [f"{len(ours)} kernels, all alike"]))
    return int(bool(lines))


def _differing_roles(a: dict, b: dict) -> list[str]:
    """Compare files by their records in the manifests; `verify` compares the manifests with the files."""
    hashes = [{role: r["sha256"] for role, r in kernel["files"].items()} for kernel in (a, b)]
    roles = sorted({**hashes[0], **hashes[1]})
    return [role for role in roles if hashes[0].get(role) != hashes[1].get(role)]


def show(options) -> int:
    from cute_fa4.aot import entry

    found = [
        (directory, kernel)
        for directory in _directories(options)
        for kernel in manifest.read_manifest(directory)["kernels"]
        if options.name in kernel["name"]
    ]
    exact = [pair for pair in found if pair[1]["name"] == options.name]
    if len(exact or found) != 1:
        names = "\n  ".join(kernel["name"] for _, kernel in found)
        raise LoadError(
            f"name: {options.name!r} is in the names of {len(found)} kernels; accepted: a part of one only"
            + (f"\n  {names}" if names else "")
        )
    [(directory, kernel)] = exact or found
    config = _config(directory, kernel)
    print(f"{kernel['name']}  in {directory}\n\n{config!r}\n\n{entry.toml(config)}")
    print(f"parameters of {kernel['symbol']} (a kernel for {kernel.get('arch')})")
    for parameter in kernel.get("parameters", []):
        print(f"  {parameter['name']:14} {_parameter(parameter)}")
    print("\nfiles")
    for role, record in kernel["files"].items():
        print(f"  {role:10} {record['bytes']:>9,}  {record['sha256'][:16]}  {record['path']}")
    return 0


def _parameter(parameter: dict) -> str:
    """
    >>> _parameter({"kind": "tuple", "items": [{"kind": "i32"}]})
    'tuple of i32'
    """
    if parameter["kind"] == "tuple":
        return "tuple of " + ", ".join(map(_parameter, parameter["items"]))
    if parameter["kind"] != "tensor":
        return parameter["kind"]
    sizes = ", ".join("*" if size is None else str(size) for size in parameter["shape"])
    return f"{parameter['dtype']} ({sizes})"
