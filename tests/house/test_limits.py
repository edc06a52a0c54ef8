"""Functions and files stay small: at most 8 parameters (ruff's PLR0913, pyproject.toml), at most 450 lines.

Files whose functions have more parameters are in pyproject.toml, with the reason; longer files are here, with their
size. The lists only shrink: a new entry is a decision that a review sees. An entry that is no longer needed must go,
and an entry whose size has shrunk must say the new size.
"""

import ast
import re
from fnmatch import fnmatch
from itertools import product
from pathlib import Path

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
MOST_LINES = 450

LINT = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
MOST_PARAMETERS = LINT["pylint"]["max-args"]
LONG_FILES = {
    "cute_fa4/emulator/checks/ordering.py": 464,
    "cute_fa4/emulator/instructions/convert.py": 495,
    "cute_fa4/emulator/instructions/lane_arithmetic.h": 476,
    "cute_fa4/hopper/tcgen05.cu": 500,
    "cute_fa4/interface.py": 486,
    "tests/emulator/checks/planted_bugs.py": 641,
    "tests/emulator/test_bulk_copy.py": 562,
    "tests/emulator/test_tcgen05.py": 506,
    "tests/emulator/test_tensor_core.py": 512,
    "tests/operators/test_compile.py": 537,
    "tests/test_interface.py": 530,
    "benchmarks/hopper_decode.cu": 755,
}
FOLDERS = ("cute_fa4", "tests", "benchmarks")
SOURCES = {".py", ".cu", ".h", ".cpp"}  # not data of tests


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Parameters with a name, self and cls not counted, as PLR0913 counts them."""
    of = function.args
    names = [a.arg for a in of.posonlyargs + of.args + of.kwonlyargs]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def has_wide_functions(source: str) -> bool:
    """Whether a function has too many parameters."""
    functions = (
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return any(parameters(function) > MOST_PARAMETERS for function in functions)


def alternatives(pattern: str) -> list[str]:
    """
    >>> alternatives("a/{b,c}.py")
    ['a/b.py', 'a/c.py']
    """
    parts = [
        part.split(",") if i % 2 else [part] for i, part in enumerate(re.split("[{}]", pattern))
    ]
    return ["".join(chosen) for chosen in product(*parts)]


def test_every_exception_to_the_number_of_parameters_is_needed():
    """Ruff refuses functions that have too many and no exception; it does not report an exception without one."""
    excepted = [
        each
        for pattern, rules in LINT["per-file-ignores"].items()
        for each in (alternatives(pattern) if "PLR0913" in rules else ())
    ]
    paths = {path.relative_to(ROOT).as_posix(): path for path in (ROOT / "cute_fa4").rglob("*.py")}
    wide = [name for name, path in paths.items() if has_wide_functions(path.read_text())]
    assert [each for each in excepted if not any(fnmatch(name, each) for name in wide)] == [
        "tests/**"
    ]


def test_files_are_short():
    found = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SOURCES:
                lines = len(path.read_text().splitlines())
                if lines > MOST_LINES:
                    found[path.relative_to(ROOT).as_posix()] = lines
    # Equal, not at most: a file that has shrunk says so, and cannot grow back.
    assert found == LONG_FILES


def test_counts_see_every_kind_of_parameter():
    """Methods, nested functions, and parameters after `*`, which a call names."""
    many = ", ".join(f"p{i}" for i in range(MOST_PARAMETERS))
    assert not has_wide_functions(f"class A:\n    def fits(self, {many}): pass")
    assert has_wide_functions(f"class A:\n    def wide(self, {many}, last): pass")
    assert has_wide_functions(f"def named({many}, *, last): pass")
    assert has_wide_functions(f"def outer():\n    async def inner({many}, /, last): pass")
