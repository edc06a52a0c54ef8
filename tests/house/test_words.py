"""Prose is standard technical English: words and openers that are not are counted, and the counts may only shrink.

Prose is markdown without its code, and docstrings and comments of Python files without names in backticks.
`python tests/house/test_words.py` prints today's counts; with a folder, each place.
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
SKIPPED = {"docs/reference", "tests/house/test_words.py"}

# What to write instead follows each pattern.
WORDS = {
    r"\b[Ww]hoever\b": "name the subject",
    r"\b([Nn]obody|[Ee]verybody|[Ss]omebody)\b": "no other warp, each reader, ...",
    r"\ball the same\b": "anyway, or drop it",
    r"\bas it was\b": "unchanged",
    r"\bjudged\b|\bjudges?\b": "checked",
    r"\blone\b": "single-tile, alone",
    r"\b[Ss]har(e|es|ed|ing) out\b": "distribute, split",
    r"\b[Pp]owers of (?!two|2|ten)": "exponentials",
    r"\b(is|are|was|were|be) (all )?there(?=[.,;:)]|$)": "ready, present",
    r"\bbehind (it|them|the|each|its|that|those|this|another|one|a|all|every)\b": "after",
    r"\b[Ww]iden(s|ed|ing)?\b": "dequantize",
    r"\bby (itself|themselves)\b": "alone",
    r"\b[Bb]eside(s)? (it|them|the|those|that|each|its|this|a|one|another)\b": "next to, in addition to",
    r"\ba way of its own\b|\b(a|an) \w+ of (its|their) own\b": "its own ...",
    r"\bnot built\b": "not supported",
    r"\breferences? of (a |the )?rows?\b": "running maximum",
    r"\bnumbers of (the|a) chip\b": "hardware constants",
    r"(?<!\S)Of [^.;|]{1,40}?,": "start with the subject",
    r"(^|[.:] )What (a|an|the|is|are|may|must|its?|each|every|one|of|has|cannot|all) ": "start with the subject",
    r"\bbut for\b": "except",
    r"\bthan there is\b|\bas there is\b": "rephrase",
    r"\bones? of \w+, the other": "rephrase",
}
PATTERNS = {re.compile(pattern, re.M): better for pattern, better in WORDS.items()}

# Places per folder of two levels.
COUNTS = {
    ".": 5,
    "benchmarks/cycle_model": 1,
    "cute_fa4/sm100": 40,
    "docs": 9,
    "docs/decisions": 91,
    "docs/performance": 4,
    "tests/calls": 1,
    "tests/emulator": 2,
    "tests/suite": 1,
}


def without_names(text: str) -> str:
    """A text without names in backticks and targets of links."""
    return re.sub(r"`[^`\n]*`|\]\([^)]*\)", "``", text)


def prose_of_markdown(text: str) -> list[tuple[int, str]]:
    """Paragraphs and rows of tables, with the number of the first line; blocks of code left out."""
    blank = re.sub(r"^ *```.*?^ *```", lambda m: "\n" * m[0].count("\n"), text, flags=re.M | re.S)
    blank = re.sub(r"^    .*$", "", blank, flags=re.M)
    return _paragraphs(enumerate(blank.split("\n"), 1))


def prose_of_python(text: str) -> list[tuple[int, str]]:
    """Docstrings, and runs of comment lines."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if docstring := ast.get_docstring(node, clean=False):
                first = node.body[0].lineno
                found += _paragraphs(enumerate(docstring.split("\n"), first))
    comments = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments[token.start[0]] = token.string.lstrip("#: ")
    lines = ((n, comments.get(n, "")) for n in range(1, text.count("\n") + 2))
    return found + _paragraphs(lines)


def _paragraphs(lines) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    first, words = 0, []
    for number, line in [*lines, (0, "")]:
        if line.strip() and not line.lstrip().startswith("|"):
            first, words = (first if words else number), [*words, line.strip()]
            continue
        if words:
            found.append((first, without_names(" ".join(words))))
            words = []
        if line.strip():
            found += [(number, without_names(cell.strip())) for cell in line.split("|")]
    return found


def files() -> list[Path]:
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    for folder in ("cute_fa4", "tests", "benchmarks", "examples"):
        found += (ROOT / folder).rglob("*.py")
    names = {path: path.relative_to(ROOT).as_posix() for path in found}
    return sorted(p for p, name in names.items() if not any(name.startswith(s) for s in SKIPPED))


def places(path: Path) -> list[tuple[int, str, str]]:
    """Line, words found and what to write instead."""
    prose = prose_of_markdown if path.suffix == ".md" else prose_of_python
    return [
        (line, found[0].strip(), better)
        for line, text in prose(path.read_text())
        for pattern, better in PATTERNS.items()
        for found in pattern.finditer(text)
    ]


def room(path: Path) -> str:
    """cute_fa4/emulator, tests/emulator, docs, docs/serving, ...: the folder, of at most two levels."""
    return "/".join(path.relative_to(ROOT).parts[:-1][:2]) or "."


def counts() -> dict[str, int]:
    found = Counter()
    for path in files():
        found[room(path)] += len(places(path))
    return {name: count for name, count in sorted(found.items()) if count}


def test_the_counts_only_shrink():
    grown = {name: count for name, count in counts().items() if count > COUNTS.get(name, 0)}
    assert not grown, "python tests/house/test_words.py FOLDER prints each place"


def test_a_word_is_found_in_prose_only():
    source = '''
def judged():  # nobody
    """Whoever reads `nobody`."""
    return "nobody"
'''
    assert [word for _, text in prose_of_python(source) for word in _found(text)] == [
        "Whoever",
        "nobody",
    ]
    page = "Of rows, one.\n\n```python\nnobody\n```\n\n| `nobody` | is it there |\n"
    assert [word for _, text in prose_of_markdown(page) for word in _found(text)] == ["Of rows,"]


def _found(text: str) -> list[str]:
    return [found[0] for pattern in PATTERNS for found in pattern.finditer(text)]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        for path in files():
            name = path.relative_to(ROOT).as_posix()
            if name.startswith(sys.argv[1]):
                for line, word, better in places(path):
                    print(f"{name}:{line}: {word!r}: {better}")
    else:
        print("\n".join(f'    "{name}": {count},' for name, count in counts().items()))
