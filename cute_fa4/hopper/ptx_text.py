"""PTX text -> tokens that can be replaced individually; the rest stays byte for byte.

@%p1 bra $L__BB0_2;             instruction: guard "%p1", opcode "bra", operands ("$L__BB0_2",)
$L__BB0_2:                      label
.reg .b32 %r<9>;   .loc 1 2 3   directive
{   }                           brace: a scope begins, ends
spaces and comments             other
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""
      (?P<other>       \s+ | //[^\n]* | /\*.*?\*/ )
    | (?P<brace>       [{}] )
    | (?P<section>     \.section\b[^{]*\{[^}]*\} )
    | (?P<line>        \.(?:version|target|address_size|loc|file)\b[^\n]* )
    | (?P<directive>   \.[A-Za-z][^;{}]*;? )
    | (?P<label>       [A-Za-z_$%][\w$%]*\s*:(?!:) )
    | (?P<instruction> (?:@!?[\w$%]+\s+)? [a-z]\w*(?:[.:][\w:]+)* (?:\s[^;]*)? ; )
    | (?P<rest>        [^;\n]*[;\n]? )
    """,
    re.VERBOSE | re.DOTALL,
)
_INSTRUCTION = re.compile(r"(?:@(!?[\w$%]+)\s+)?([a-z]\w*(?:[.:][\w:]+)*)\s*(.*);", re.DOTALL)
_COMMENT = re.compile(r"//[^\n]*")
_DIRECTIVES = ("section", "line", "directive", "rest")


@dataclass(frozen=True)
class Token:
    """A piece of PTX. kind: "instruction", "label", "directive", "brace" or "other".

    An instruction also has: guard ("%p1", "!%p1" or ""), opcode with all its suffixes, operands as text.
    """

    kind: str
    text: str
    guard: str = ""
    opcode: str = ""
    operands: tuple[str, ...] = ()


def tokens(ptx: str) -> Iterator[Token]:
    """The tokens of a PTX module in order; their texts joined are the module."""
    for match in _TOKEN.finditer(ptx):
        kind, text = match.lastgroup or "", match[0]
        if kind == "instruction":
            parts = _INSTRUCTION.fullmatch(_COMMENT.sub("", text))
            guard, opcode, operands = parts.groups()  # type: ignore[union-attr]  # _TOKEN has matched it
            yield Token(kind, text, guard or "", opcode, split_operands(operands))
        elif text:
            yield Token("directive" if kind in _DIRECTIVES else kind, text)


def split_operands(text: str) -> tuple[str, ...]:
    """Split at the commas outside brackets.

    >>> split_operands("[%r1+8], {%r2, %r3}, 0x10")
    ('[%r1+8]', '{%r2, %r3}', '0x10')
    >>> split_operands("")
    ()
    """
    found, depth, begin = [], 0, 0
    for position, character in enumerate(text):
        depth += (character in "{[(") - (character in "}])")
        if character == "," and depth == 0:
            found.append(text[begin:position].strip())
            begin = position + 1
    last = text[begin:].strip()
    return (*found, last) if last else tuple(found)


def elements(operand: str) -> list[str]:
    """The registers of a vector operand.

    >>> elements("{%r2, %r3}")
    ['%r2', '%r3']
    """
    return [element.strip() for element in operand.strip("{} \n\t").split(",")]
