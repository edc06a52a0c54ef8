"""Functions and files stay small: at most 8 positional parameters, at most 450 lines.

Larger ones are listed with their size. The lists only shrink: a new entry is a decision that a review sees.
An entry that is no longer needed must go, and an entry whose size has shrunk must say the new size.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST_PARAMETERS = 8
MOST_LINES = 450

# Public functions: their callers pass these arguments by position.
PUBLIC = {
    "cute_fa4/mla.py": {"flash_mla_with_kvcache": 16},
}
# Functions of the package: a group of arguments that is carried together becomes a dataclass.
INTERNAL = {
    "cute_fa4/calls/ask/capabilities.py": {"_capability": 13},
    "cute_fa4/calls/attention.py": {"plan_attention": 9, "config_of": 9},
    "cute_fa4/calls/operands/tensors.py": {"check": 9},
    "cute_fa4/distributed/attention.py": {"_checked": 10},
    "cute_fa4/distributed/decode.py": {"_cache": 11},
    "cute_fa4/emulator/checks/memory.py": {"touch": 9, "Region.access": 9},
    "cute_fa4/emulator/host/ptx_files.py": {
        "encode_tiled": 9,
        "encode_im2col": 12,
        "_common_words": 9,
    },
    "cute_fa4/hopper/calls.py": {"_ragged_call": 9},
    "cute_fa4/sm100/append/kernel.py": {"AppendKernel.__call__": 11},
    "cute_fa4/sm100/backward/kernel.py": {"BackwardKernel.__call__": 16},
    "cute_fa4/sm100/combine/kernel.py": {"CombineKernel.__call__": 9},
    "cute_fa4/sm100/kernel.py": {"SM100Kernel.__call__": 21},
}
LONG_FILES = {
    "cute_fa4/calls/append.py": 451,
    "cute_fa4/calls/operands/tensors.py": 497,
    "cute_fa4/emulator/checks/memory.py": 528,
    "cute_fa4/emulator/checks/ordering.py": 491,
    "cute_fa4/emulator/instructions/convert.py": 495,
    "cute_fa4/emulator/instructions/lane_arithmetic.h": 491,
    "cute_fa4/emulator/instructions/memory.py": 606,
    "cute_fa4/emulator/instructions/tcgen05.py": 592,
    "cute_fa4/emulator/ptx/parser.py": 459,
    "cute_fa4/hopper/tcgen05.cu": 500,
    "cute_fa4/interface.py": 490,
    "cute_fa4/sm100/traced/expressions.py": 546,
    "tests/emulator/checks/planted_bugs.py": 641,
    "tests/emulator/test_bulk_copy.py": 562,
    "tests/emulator/test_tcgen05.py": 506,
    "tests/emulator/test_tensor_core.py": 512,
    "tests/operators/test_compile.py": 537,
    "tests/test_interface.py": 541,
    "benchmarks/hopper_decode.cu": 755,
}
FOLDERS = ("cute_fa4", "tests", "benchmarks")
SOURCES = {".py", ".cu", ".h", ".cpp"}  # not data of tests


def positional(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Parameters that may be given by position, self and cls not counted."""
    names = [a.arg for a in function.args.posonlyargs + function.args.args]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def functions(node: ast.AST, prefix: str = ""):
    """Each function below a node, with its qualified name."""
    for child in ast.iter_child_nodes(node):
        inside = prefix
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = f"{prefix}{child.name}."
            if not isinstance(child, ast.ClassDef):
                yield prefix + child.name, child
        yield from functions(child, inside)


def wide_functions(source: str) -> dict[str, int]:
    """Functions of a file with too many parameters; of two with one name, the larger count."""
    found: dict[str, int] = {}
    for name, function in functions(ast.parse(source)):
        count = positional(function)
        if count > MOST_PARAMETERS:
            found[name] = max(count, found.get(name, 0))
    return found


def test_functions_take_few_parameters():
    """Signatures in integrations/ are those of other libraries."""
    found = {}
    for path in sorted((ROOT / "cute_fa4").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        wide = wide_functions(path.read_text())
        if wide and not name.startswith("cute_fa4/integrations/"):
            found[name] = wide
    assert found == PUBLIC | INTERNAL


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
    """Methods, nested functions, and parameters behind `*`, which a call names."""
    many = ", ".join(f"p{i}" for i in range(MOST_PARAMETERS))
    source = f"""
class A:
    def fits(self, {many}): pass
    def wide(self, {many}, last): pass
def named({many}, *, last): pass
def outer():
    async def inner({many}, /, last): pass
"""
    assert wide_functions(source) == {"A.wide": 9, "outer.inner": 9}
