"""Names that the source of a kernel gives to its warps and memory, read from its text.

    storage = smem.allocate(Storage)      assigned(file, line)           -> "storage"
    if warp == self.mma_warp_id:          python_roles(file, line, ...)  -> ((4,), "mma")
    if (warp_id == MMA_WARP) { ... }      kernel_names(kernel, module)   -> ((4,), "mma"), of CUDA C++ with -lineinfo
    .shared .align 8 .b8 _ZZ4gemmE4full[16]                              -> "full", of any PTX

Nothing is executed. A condition whose names have no known value gives no name.
"""

import ast
import linecache
import re
from collections.abc import Callable, Iterable
from functools import lru_cache

from cute_fa4.emulator.ptx.labels import KernelLabels

MAX_WARPS = 32
"""Of a CTA of 1024 threads; other values are no warp indices."""

_CUDA_FILES = (".cu", ".cuh", ".h", ".hpp", ".inl")
_CUDA_BRANCH = re.compile(
    r"\bif\b[^;{]*?\bwarp(?:_?(?:idx|id|index))?\s*[=!]=\s*([A-Za-z_]\w*(?:::\w+)*)(?=\s*[)&|])",
    re.I,
)
_CUDA_CONSTANT = r"(?:\b(?:constexpr|const)\b[^;\n]*\b{0}\s*=|#\s*define\s+{0}|\benum\b[^}}]*\b{0}\s*=)\s*(\d+)\b"


def tidy(name: str) -> str:
    """A role's name without the words that say that it is one.

    >>> tidy("softmax0_warp_ids"), tidy("TMA_WARP"), tidy("kMmaWarp"), tidy("LOAD"), tidy("warp_id")
    ('softmax0', 'tma', 'mma', 'load', 'warp_id')
    """
    plain = re.sub(r"^k(?=[A-Z])", "", name).lower()
    return re.sub(r"_?warps?(_?(ids?|idx|index|indices))?(?=_|$)", "", plain).strip("_") or name


def warps_of(value) -> tuple[int, ...]:
    """The warps that a constant of a kernel lists: an index or several; () if it is something else."""
    values = (value,) if isinstance(value, int) else value
    if not isinstance(values, (tuple, list, range)) or not values:
        return ()
    fits = all(
        isinstance(v, int) and not isinstance(v, bool) and 0 <= v < MAX_WARPS for v in values
    )
    return tuple(values) if fits else ()


# --- Python ----------------------------------------------------------------------------------------------


@lru_cache(8)
def _tree(file: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None


@lru_cache(4096)
def _innermost(file: str, line: int, kinds):
    tree = _tree(file)
    found = None
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, kinds) and node.lineno <= line <= (node.end_lineno or 0):
            if found is None or node.lineno >= found.lineno:
                found = node
    return found


def forget() -> None:
    """Free the syntax trees of the files that were read."""
    _tree.cache_clear()
    _innermost.cache_clear()


def assigned(file: str, line: int) -> str | None:
    """The variable that the statement at a line assigns, "" if none; None if it returns its value.

    Several variables give the beginning that they share: ``a_producer, a_consumer = create(...)`` gives "a".
    """
    statement = _innermost(file, line, (ast.Assign, ast.AnnAssign, ast.Return))
    if statement is None or isinstance(statement, ast.Return):
        return "" if statement is None else None
    target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
    targets = target.elts if isinstance(target, ast.Tuple) else [target]
    names = [t.id if isinstance(t, ast.Name) else getattr(t, "attr", "") for t in targets]
    first = min(names)
    shared = next(
        (first[:n] for n in range(len(first), 0, -1) if all(x.startswith(first[:n]) for x in names)), ""
    )  # fmt: skip
    return shared.strip("_")


def python_roles(file: str, line: int, look_up: Callable) -> list[tuple[tuple[int, ...], str]]:
    """(warps, role) in the function around a line: first of the comparisons of the warp index, then of other uses.

    Other uses are those of variables with warp_id or warp_indices in their name. Both are in the order of the source.
    look_up  name of a variable -> its value; KeyError where it has none. Read are names, and attributes of them.
    """
    function = _innermost(file, line, (ast.FunctionDef,))
    if function is None:
        return []
    indices: set[str] = set()
    found, used = [], []
    kinds = (ast.Assign, ast.Compare, ast.Attribute, ast.Name)
    for node in sorted(
        (n for n in ast.walk(function) if isinstance(n, kinds)),
        key=lambda n: (n.lineno, n.col_offset),
    ):
        if isinstance(node, (ast.Attribute, ast.Name)):
            used += _named_warps(node, look_up, exact=False)
            continue
        if isinstance(node, ast.Assign):
            if _is_warp_index(node.value, indices):
                indices |= {t.id for t in node.targets if isinstance(t, ast.Name)}
            continue
        sides = [node.left, *node.comparators]
        if any(_is_warp_index(side, indices) for side in sides):
            exact = all(isinstance(op, (ast.Eq, ast.NotEq, ast.In, ast.NotIn)) for op in node.ops)
            for side in sides:
                found += _named_warps(side, look_up, exact)
    return list(dict.fromkeys(found + used))


def _is_warp_index(node, indices) -> bool:
    """Is it the index of the warp in its CTA: warp_idx(), one of these variables, or such a value made uniform?"""
    if isinstance(node, ast.Name):
        return node.id in indices
    if not isinstance(node, ast.Call):
        return False
    called = getattr(node.func, "attr", getattr(node.func, "id", ""))
    if called == "make_warp_uniform" and node.args:
        return _is_warp_index(node.args[0], indices)
    return called in ("warp_idx", "canonical_warp_idx")


def _named_warps(node, look_up, exact) -> list[tuple[tuple[int, ...], str]]:
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return [entry for element in node.elts for entry in _named_warps(element, look_up, exact)]
    while isinstance(node, ast.Subscript):  # self.epilogue_warp_ids[0] names all of them
        node = node.value
    name = getattr(node, "attr", getattr(node, "id", ""))
    # ``warp < self.mma_warp_id`` names a warp, ``warp < count`` does not.
    if not name or not (exact or re.search("warp_?i[dn]", name, re.I)):
        return []
    # A variable without "warp" in its name may be a loop's; a constant is written in capitals.
    if isinstance(node, ast.Name) and not (name.isupper() or "warp" in name.lower()):
        return []
    try:
        warps = warps_of(_value(node, look_up))
    except (KeyError, AttributeError):
        return []
    return [(warps, tidy(name))] if warps else []


def _value(node, look_up):
    if isinstance(node, ast.Attribute):
        return getattr(_value(node.value, look_up), node.attr)
    if isinstance(node, ast.Name):
        return look_up(node.id)
    raise KeyError(ast.dump(node))


# --- PTX of any compiler -----------------------------------------------------------------------------------


def kernel_names(kernel, module) -> KernelLabels:
    """Labels from the text of a parsed kernel: its static shared variables, roles of CUDA C++ sources."""
    variables = {**module.variables, **kernel.variables}.values()
    base = kernel.dynamic_shared_offset
    shared = tuple(
        (v.offset - base, v.nbytes, demangled(v.name))
        for v in variables
        if v.space == "shared" and v.nbytes
    )
    return KernelLabels(
        roles=tuple(cuda_roles(ins.source for ins in kernel.instructions)), shared=shared
    )


def demangled(symbol: str) -> str:
    """The variable's own name in a symbol of C++; other symbols as they are.

    >>> demangled("_ZZ4gemmPfE4full"), demangled("_ZN3lib5stageE"), demangled("_ZZ1fvE1s_0"), demangled("tile")
    ('full', 'stage', 's', 'tile')
    """
    if not symbol.startswith("_Z"):
        return symbol
    for m in reversed(list(re.finditer(r"(?<!\d)(\d+)(?=[A-Za-z_])", symbol))):
        name = symbol[m.end() : m.end() + int(m[1])]
        rest = symbol[m.end() + int(m[1]) :]
        if len(name) == int(m[1]) and re.fullmatch(r"E?(_\d*_?)?", rest):
            return name
    return symbol


def cuda_roles(sources: Iterable[tuple | None]) -> list[tuple[tuple[int, ...], str]]:
    """(warps, role) from branches such as ``if (warp_id == MMA_WARP)`` between the lines that instructions come from.

    sources  (file, line) of each instruction, or None; files that are not here are skipped
    """
    lines: dict[str, tuple[int, int]] = {}
    for file, line in filter(None, sources):
        if file.endswith(_CUDA_FILES):
            low, high = lines.get(file, (line, line))
            lines[file] = min(low, line), max(high, line)
    found = []
    for file, (low, high) in lines.items():
        text = linecache.getlines(file)
        whole = "".join(text)
        for branch in _CUDA_BRANCH.finditer("".join(text[low - 1 : high])):
            name = branch[1].rsplit("::", 1)[-1]
            value = re.search(_CUDA_CONSTANT.format(name), whole)
            warps = warps_of(int(value[1])) if value else ()
            if warps:
                found.append((warps, tidy(name)))
    return found
