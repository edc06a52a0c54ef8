"""Docstrings for the site: prose stays prose, tables become tables that wrap, pictures stay aligned.

Docstrings of this package are written to be read in an editor: parameters are tables with two columns, pictures are
drawn with characters. Markdown would run their lines together, so a block of rows `term  what it is` becomes a table,
and every other aligned block a block of code.

    >>> print(as_markdown("Attends.\\n\\nq     queries\\nk, v  keys,\\n      or values\\n\\nRaises * nothing."))
    Attends.
    <BLANKLINE>
    <table>
    <tr><td><code>q</code></td><td>queries</td></tr>
    <tr><td><code>k, v</code></td><td>keys, or values</td></tr>
    </table>
    <BLANKLINE>
    Raises \\* nothing.
"""

import re
import textwrap
from collections import Counter
from html import escape

import griffe

# Two spaces between words (a table), a line that begins with one (its continuation, or a picture), a doctest.
_ALIGNED = re.compile(r"^\s|\S {2,}\S|^>>>", re.MULTILINE)
# A row of a table of two columns: a term of a few words, at least two spaces, what it is without further columns.
_ROW = re.compile(r"(?P<term>\S+(?: \S+){0,4}?) {2,}(?P<text>\S+(?: \S+)*)")
_MOST_TERM = 34  # characters; longer ones are code with a remark


def as_markdown(docstring: str) -> str:
    """The text of a docstring, without indentation, as Markdown."""
    parts: list[tuple[bool, str]] = []
    for block in re.split(r"\n\s*\n|\n(?=Raises |Returns )", docstring.strip("\n")):
        rows = as_rows(block)
        if rows is not None:
            parts.append((False, as_table(rows)))
        elif not _ALIGNED.search(block):
            parts.append((False, _escaped(block)))
        elif parts and parts[-1][0]:
            parts[-1] = (True, parts[-1][1] + "\n\n" + block)
        else:
            parts.append((True, block))
    return "\n\n".join(f"```text\n{text}\n```" if code else text for code, text in parts)


def as_rows(block: str) -> list[tuple[str, str]] | None:
    """The rows of a table of two columns, continued lines joined; None for anything else.

    >>> as_rows("a    one\\n     more\\nb c  two\\nlong three\\nlonger  four")
    [('a', 'one more'), ('b c', 'two'), ('long', 'three'), ('longer', 'four')]
    >>> as_rows("row 0   0 1 2   3 4 5")
    >>> as_rows("one paragraph\\nof text")
    """
    lines = textwrap.dedent(block).splitlines()
    begins = Counter(found.start("text") for line in lines if (found := _ROW.fullmatch(line)))
    if not begins:
        return None
    column = begins.most_common(1)[0][0]
    rows: list[tuple[str, str]] = []
    for line in lines:
        found = _ROW.fullmatch(line)
        at_column = line[column - 1 : column] == " " != line[column : column + 1]
        if not line.startswith(" ") and at_column and "  " not in line[column:]:
            rows.append((line[:column].strip(), line[column:]))
        elif found:
            rows.append((found["term"], found["text"]))
        elif rows and re.match(r" {4}", line) and "  " not in line.strip():
            rows[-1] = (rows[-1][0], f"{rows[-1][1]} {line.strip()}")
        else:
            return None
    return rows if all(term and len(term) <= _MOST_TERM for term, _ in rows) else None


def as_table(rows: list[tuple[str, str]]) -> str:
    """HTML, which Markdown leaves as it is."""
    cells = (
        f"<tr><td><code>{escape(term, quote=False)}</code></td><td>{escape(text, quote=False)}</td></tr>"
        for term, text in rows
    )
    return "\n".join(["<table>", *cells, "</table>"])


def _escaped(prose: str) -> str:
    """Prose without the characters that Markdown takes for its own; code in backticks stays as it is."""
    parts = re.split(r"(`[^`]*`)", prose)
    return "".join(part if part.startswith("`") else _plain(part) for part in parts)


def _plain(text: str) -> str:
    return re.sub(r"([*_#\[\]])", r"\\\1", text).replace("<", "&lt;")


class AlignedDocstrings(griffe.Extension):
    """Rewrites every docstring that is loaded."""

    def on_object(self, *, obj, **kwargs):
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
