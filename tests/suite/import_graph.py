"""The files that a Python file of this repository can load or read, from its text alone.

imported()      modules that a file imports, also inside of functions: what tests/house holds to the floors
mentioned()     what it may load besides: names in strings, for import_module, for `python -m` and in code for other
                processes, and the names of files that it reads
reached_by()    everything that follows from both, file by file: what pytest --since goes by
"""

import ast
import functools
import re
import subprocess
import textwrap
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("cute_fa4", "benchmarks", "tests", "docs", "examples")
OF_EVERY_TEST = ("tests/conftest.py", "tests/suite/")
"""All tests import them, so they are not counted for any single test."""

_NAME = re.compile(rf"\b(?:{'|'.join(PACKAGES)})(?:\.\w+)+")
_FROM_PACKAGE = re.compile(r"from cute_fa4 import (\([^)]*\)|.*)")
_FILE = re.compile(r"[\w.-]+\.\w+")


def modules(folders: Iterable[str], root: Path = ROOT) -> dict[str, Path]:
    """Name -> file of every module below the folders."""
    found = {}
    for folder in folders:
        for path in (root / folder).rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(module: str, path: Path, known: dict[str, Path]) -> set[str]:
    """Those of the known modules that a file imports, also inside of functions."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return _imports_of(ast.parse(path.read_text()), package, known) - {module}


def _imports_of(tree: ast.AST, package: str, known) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
            found |= {name if name in known else base for name in names}
    return {name for name in found if name in known}


def mentioned(module: str, path: Path, known: dict[str, Path], files: dict[str, set[str]]) -> set:
    """Modules and files whose names stand in strings. files: name without folders -> the files that have it."""
    tree = ast.parse(path.read_text())
    docs = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            found |= _matching(node, module, known)
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str)) or id(node) in docs:
            continue
        text = node.value
        found |= {name for match in _NAME.findall(text) for name in _prefixes(match) & known.keys()}
        found |= {file for name in _FILE.findall(text) for file in files.get(name, ())}
        if "import " in text:
            found |= _imports_of_code(text, known)
    if {"-m", "cute_fa4"} <= _words(tree):
        found.add("cute_fa4.__main__")
    return found - {module}


def _words(tree: ast.AST) -> set:
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}


def _prefixes(name: str) -> set[str]:
    """ "cute_fa4.masks.window" names a module and what is in it."""
    parts = name.split(".")
    return {".".join(parts[:n]) for n in range(2, len(parts) + 1)}


def _imports_of_code(text: str, known) -> set[str]:
    try:
        return _imports_of(ast.parse(textwrap.dedent(text)), "", known)
    except SyntaxError:  # prose, or a template
        return set()


def _matching(node: ast.JoinedStr, module: str, known) -> set[str]:
    """Modules that an f-string may name: f"cute_fa4.sm100.{family}.kernel", f"{__name__}.{part}"."""
    pattern = ""
    for part in node.values:
        if isinstance(part, ast.Constant):
            pattern += re.escape(part.value)
        elif isinstance(part.value, ast.Name) and part.value.id == "__name__":
            pattern += re.escape(module)
        else:
            pattern += r"[\w.]+"
    if not pattern.startswith(tuple(map(re.escape, ("cute_fa4.", "benchmarks.", "tests.")))):
        return set()
    return {name for name in known if re.fullmatch(pattern, name)}


def tracked(root: Path = ROOT) -> list[str]:
    """Files that git knows, and new ones that it does not ignore."""
    command = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.split("\n")[:-1]


@functools.cache
def _graph() -> dict[str, set[str]]:
    """File -> files that it can load or read at once, by their paths in the repository."""
    known = modules(PACKAGES)
    files = {}
    for file in tracked():
        if not file.endswith(".py"):
            files.setdefault(file.rpartition("/")[2], set()).add(file)
    file_of = lambda name: known[name].relative_to(ROOT).as_posix() if name in known else name
    graph = {}
    for module, path in known.items():
        if file_of(module).startswith(OF_EVERY_TEST):
            graph[file_of(module)] = set()
            continue
        targets = imported(module, path, known)
        if module != "cute_fa4":  # it loads what it is asked for, by names that the asking file has
            targets |= mentioned(module, path, known, files)
        targets |= _asked_of_the_package(path, known)
        graph[file_of(module)] = {file_of(target) for target in targets}
        # A package's __init__ runs before its modules do, a conftest before the tests beside and below it.
        for folder in path.relative_to(ROOT).parents:
            for name in ("__init__.py", "conftest.py"):
                if (ROOT / folder / name).exists() and ROOT / folder / name != path:
                    graph[file_of(module)].add((folder / name).as_posix())
    return graph


def _asked_of_the_package(path: Path, known) -> set[str]:
    """Homes of the names that a file takes from `cute_fa4`, which loads them then."""
    import cute_fa4

    homes = {**cute_fa4._HOME, **{name: f"cute_fa4.{name}" for name in cute_fa4._MODULES}}
    text = path.read_text()
    names = set(re.findall(r"\bcute_fa4\.(\w+)", text))
    for listed in _FROM_PACKAGE.findall(text):
        names |= set(re.findall(r"\w+", listed))
    return {homes[name] for name in names & homes.keys() if homes[name] in known}


@functools.cache
def reached_by(file: str) -> frozenset[str]:
    """Every file that a Python file can load or read, itself among them."""
    found, waiting = {file}, [file]
    while waiting:
        new = _graph().get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return frozenset(found)
