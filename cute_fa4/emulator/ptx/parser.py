"""PTX text -> PtxModule of Kernels: parameters, register rows, shared variables, instructions, labels.

    .reg .b32 %r<7>;                     row 0..6 of the warp's register array
    .reg .b64 %rd<3>;                    rows 8 10 12 (two rows each; a .b128 register has four)
    ld.global.b32 %r5, [%rd4+16];        Instruction("ld.global.b32", (Reg(5, 32), Addr(Reg(..), 16)))
    @!%p1 bra $L__BB0_2;                 Instruction("bra", (Label("$L__BB0_2"),), guard=(1, True))

Blocks in braces have separate registers and labels. ``.loc`` lines give every instruction its Python file and line;
inline assembly has that of its statement. Text that the parser does not understand raises UnknownInstruction with
its PTX line.
PTX ISA, "Syntax", "State Spaces, Types, and Variables", "Directives".
"""

import dataclasses
import re
from bisect import bisect_right

from cute_fa4.emulator.ptx import calls, literals
from cute_fa4.emulator.ptx.errors import UnknownInstruction
from cute_fa4.emulator.ptx.syntax import (
    RESERVED_SHARED_BYTES,
    SPECIAL_REGISTERS,
    Addr,
    Imm,
    Instruction,
    Kernel,
    Label,
    Pair,
    Pred,
    PtxModule,
    Reg,
    Sink,
    Special,
    Symbol,
    Variable,
    Vec,
)

__all__ = [
    "Addr", "Imm", "Instruction", "Kernel", "Label", "Pair", "Pred", "PtxModule", "Reg", "Sink", "Special", "Symbol",
    "Variable", "Vec", "parse",
]  # fmt: skip

_TYPE_BITS = {"b8": 8, "u8": 8, "s8": 8, "b16": 16, "u16": 16, "s16": 16, "f16": 16, "bf16": 16, "b32": 32,
              "u32": 32, "s32": 32, "f32": 32, "f16x2": 32, "bf16x2": 32, "b64": 64, "u64": 64, "s64": 64,
              "f64": 64, "f32x2": 64, "b128": 128}  # fmt: skip

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_STATEMENT = re.compile(r"[^;{}]*?(?:\{[^{}]*\}[^;{}]*?)*;")
_NAME = r"[A-Za-z_$%][\w$.]*"
_LABEL = re.compile(r"\s*([A-Za-z_$][\w$]*)\s*:(?!:)")
_REG_DECLARATION = re.compile(r"\.reg\s+\.(\w+)\s+(.*)", re.S)
_VARIABLE = re.compile(
    r"(?:\.(?:extern|visible|weak|common)\s+)*\.(shared|global|const|local|param)\s+(?:\.align\s+(\d+)\s+)?"
    r"(?:\.ptr\s*(?:\.\w+\s*)*(?:\.align\s+\d+\s+)?)?\.(\w+)\s+(?:\.ptr\s*(?:\.(?:global|shared|const|local|generic)\s*)?"
    rf"(?:\.align\s+\d+\s+)?)?({_NAME})\s*((?:\[\s*\d*\s*\])*)\s*(?:=\s*(.*))?$",
    re.S,
)
_FILE = re.compile(r'\.file\s+(\d+)\s+"((?:[^"\\]|\\.)*)"')
_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)\s+(\d+)([^\n]*)")
_ENTRY = re.compile(
    rf"(?:\.(?:visible|extern|weak)\s+)*\.(entry|func)\b\s*(?:\([^()]*\)\s*)?({_NAME})\s*", re.S
)
_GUARD = re.compile(r"@(!?)\s*([%\w$.]+)\s+(.*)", re.S)
# A vector or an address may follow without a space.
_OPCODE = re.compile(r"([^\s{\[]+)\s*(.*?)\s*$", re.DOTALL)
# The compiler counts lines inside inline assembly from the line of the statement: .loc 2 69 is the third line of a
# text at line 67, although the file has something else at line 69.
_INLINE_ASM = re.compile(
    r"^[ \t]*// begin inline asm[ \t]*$.*?^[ \t]*// end inline asm[ \t]*$", re.S | re.M
)
_LOC_LINE = re.compile(r"^[ \t]*\.loc\b[^\n]*", re.M)
_DSL_FILES = re.compile(r"site-packages|nvidia_cutlass_dsl|<")


def parse(text, helper_files=()):
    """Parse a PTX text. Returns a PtxModule; raises UnknownInstruction with the unreadable line.

    helper_files  ends of the paths of Python files whose locations do not count as a role file's
    """
    return _Parser(text, helper_files).module


class _Scope:
    """Names of one pair of braces."""

    def __init__(self, parent, number):
        self.parent, self.number = parent, number
        self.registers = {}
        self.labels = {}

    def find(self, table, name):
        scope = self
        while scope is not None:
            value = getattr(scope, table).get(name)
            if value is not None:
                return value
            scope = scope.parent
        return None


class _Parser:
    def __init__(self, text, helper_files):
        self.module = PtxModule(text=text)
        self.helper_files = tuple(f"/{file}" for file in helper_files)
        self.files = {int(n): name for n, name in _FILE.findall(text)}
        text = _INLINE_ASM.sub(lambda m: _LOC_LINE.sub("", m[0]), text)
        # Comments become blanks with the same number of lines, so that line numbers stay right.
        text = _COMMENT.sub(lambda m: "\n" * m[0].count("\n") or " ", _hide_strings(text))
        self.text = text
        self.line_starts = [0] + [m.end() for m in re.finditer("\n", text)]
        self.role_files = {
            n: not (_DSL_FILES.search(name) or f"/{name}".endswith(self.helper_files))
            for n, name in self.files.items()
        }
        self._parse_module()

    # -- module level ----------------------------------------------------------------------------------

    def _parse_module(self):
        text, at = self.text, 0
        target = re.search(r"\.target\s+([\w]+)", text)
        self.module.target = target[1] if target else ""
        while True:
            m = re.compile(r"\s*").match(text, at)
            at = m.end()
            if at >= len(text):
                return
            entry = _ENTRY.match(text, at)
            if entry:
                at = self._parse_function(entry)
                continue
            directive = re.compile(
                r"\.(version|target|address_size|file|loc|pragma)\b[^\n]*"
            ).match(text, at)
            if directive:
                at = directive.end()
                continue
            section = re.compile(r"\.section\s+\S+\s*\{[^{}]*\}").match(text, at)
            if section:
                at = section.end()
                continue
            end = text.find(";", at)
            if end < 0:
                self._refuse("cannot read the rest of the PTX text", at, text[at : at + 80])
            self._declare_variable(text[at:end].strip(), self.module.variables, None, at)
            at = end + 1

    def _parse_function(self, entry):
        text, at = self.text, entry.end()
        kernel = Kernel(entry[2])
        if text[at : at + 1] == "(":
            end = text.index(")", at)
            offset = 0
            for part in filter(str.strip, text[at + 1 : end].split(",")):
                variable = self._variable(part.strip(), at)
                offset = -(-offset // variable.align) * variable.align
                variable = dataclasses.replace(variable, space="param", offset=offset)
                kernel.params.append(variable)
                kernel.variables[variable.name] = variable
                offset += variable.nbytes
            at = end + 1
        body = re.compile(r"[^{;]*").match(text, at)
        for name, values in re.findall(r"(\.\w+)((?:\s+\d+)?(?:\s*,\s*\d+)*)", body[0]):
            kernel.directives[name] = tuple(int(v) for v in re.findall(r"\d+", values))
        at = body.end()
        if text[at] == ";":  # a declaration without body
            return at + 1
        if entry[1] == "func":
            self._refuse(
                "device functions (.func) are not supported; the compiler inlines them",
                at,
                entry[2],
            )
        at = self._parse_body(kernel, at + 1)
        self.module.kernels[kernel.name] = kernel
        return at

    # -- function body -----------------------------------------------------------------------------------

    def _parse_body(self, kernel, at):
        """Read to the closing brace of the body. Returns the position after it."""
        self.kernel = kernel
        self.source = self.role_source = None
        root = scope = _Scope(None, 0)
        scopes, self.label_scopes = 1, {}
        pending = []  # instructions with their scope; operands are resolved once all labels are known
        text = self.text
        blank = re.compile(r"\s*")
        while True:
            at = blank.match(text, at).end()
            if at >= len(text):
                self._refuse("the kernel's closing brace is missing", at, kernel.name)
            c = text[at]
            if c == "{":
                scope = _Scope(scope, scopes)
                scopes += 1
                at += 1
            elif c == "}":
                at += 1
                if scope is root:
                    break
                scope = scope.parent
            elif c == ".":
                at = self._directive(kernel, scope, at)
            else:
                label = _LABEL.match(text, at)
                if label:
                    at = self._label(kernel, scope, label, pending)
                    continue
                statement = _STATEMENT.match(text, at)
                if not statement:
                    self._refuse(
                        "cannot read this statement", at, text[at : at + 80].split("\n")[0]
                    )
                body = statement[0][:-1].strip()
                if body:
                    pending.append((body, scope, self._line(at), self.source, self.role_source))
                at = statement.end()
        self._place_dynamic_shared(kernel)
        kernel.instructions = [self._instruction(*item) for item in pending]
        return at

    def _label(self, kernel, scope, label, pending):
        name, at = label[1], label.end()
        unique = name if scope.parent is None else f"{name}@{scope.number}"
        scope.labels[name] = unique
        targets = re.compile(r"\s*\.branchtargets\s+([^;]*);").match(self.text, at)
        if targets:
            kernel.tables[unique] = tuple(t.strip() for t in targets[1].split(","))
            return targets.end()
        kernel.labels[unique] = len(pending)
        return at

    def _directive(self, kernel, scope, at):
        text = self.text
        loc = _LOC.match(text, at)
        if loc:
            number, line, column = int(loc[1]), int(loc[2]), int(loc[3])
            # Line 0 and column 0 mean that the compiler has no statement: the last one stays.
            if line and column:
                self.source = (self.files.get(number, "?"), line)
                if self.role_files.get(number, False):
                    self.role_source = self.source
            return loc.end()
        end = text.find(";", at)
        body = text[at:end].strip()
        registers = _REG_DECLARATION.match(body)
        if registers:
            for name in registers[2].split(","):
                self._declare_registers(kernel, scope, registers[1], name.strip(), at)
        elif body.startswith((".pragma", ".callprototype")):
            pass
        else:
            self._declare_variable(body, kernel.variables, kernel, at)
        return end + 1

    def _declare_registers(self, kernel, scope, kind, name, at):
        many = re.fullmatch(rf"({_NAME})\s*<\s*(\d+)\s*>", name)
        names = [f"{many[1]}{i}" for i in range(int(many[2]))] if many else [name]
        if kind == "pred":
            for n in names:
                scope.registers[n] = Pred(kernel.predicates)
                kernel.predicates += 1
            return
        bits = _TYPE_BITS.get(kind)
        if bits is None:
            self._refuse(f"registers of type .{kind} are not supported", at, name)
        bits = max(bits, 16)
        rows = max(bits // 32, 1)
        # A 64-bit register is uint64[32]: two rows that start on an even one; a 128-bit one is two of them.
        kernel.rows += kernel.rows % min(rows, 2)
        for n in names:
            scope.registers[n] = Reg(kernel.rows, bits)
            kernel.rows += rows

    def _variable(self, body, at):
        m = _VARIABLE.match(body)
        if not m:
            self._refuse("cannot read this declaration", at, body)
        space, align, kind, name, dims, initial = m.groups()
        if kind in ("v2", "v4"):
            self._refuse("vector variables are not supported", at, body)
        element = _TYPE_BITS.get(kind, 0) // 8
        if not element:
            self._refuse(f"variables of type .{kind} are not supported", at, body)
        sizes = [int(d) if d else 0 for d in re.findall(r"\[\s*(\d*)\s*\]", dims)]
        nbytes = element
        for size in sizes:
            nbytes *= size
        data = None
        if initial is not None and space in ("global", "const"):
            values = [int(v, 0) for v in re.findall(r"-?\b(?:0[xX][0-9a-fA-F]+|\d+)\b", initial)]
            data = b"".join(
                (v & (1 << 8 * element) - 1).to_bytes(element, "little") for v in values
            )
            data = data.ljust(nbytes, b"\0")
        return Variable(name, space, 0, nbytes, int(align or element), data, kind)

    def _declare_variable(self, body, table, kernel, at):
        variable = calls.as_local(self._variable(body, at), table, kernel)
        offset = 0
        if variable.space == "local" and kernel is not None:
            offset = -(-kernel.local_bytes // variable.align) * variable.align
            kernel.local_bytes = offset + variable.nbytes
        elif variable.space == "shared" and variable.nbytes:
            # Offsets in static shared memory are assigned over the whole module.
            used = max(
                (v.offset + v.nbytes for v in self._shared(table)), default=RESERVED_SHARED_BYTES
            )
            offset = -(-used // variable.align) * variable.align
        table[variable.name] = Variable(
            variable.name, variable.space, offset, variable.nbytes, variable.align, variable.data
        )

    def _shared(self, table):
        for variables in (self.module.variables, table):
            yield from (v for v in variables.values() if v.space == "shared" and v.nbytes)

    def _place_dynamic_shared(self, kernel):
        """Extern shared arrays all start after the static variables, at the largest of their alignments."""
        start = max(
            (v.offset + v.nbytes for v in self._shared(kernel.variables)),
            default=RESERVED_SHARED_BYTES,
        )
        tables = (self.module.variables, kernel.variables)
        extern = [
            (t, v) for t in tables for v in t.values() if v.space == "shared" and not v.nbytes
        ]
        align = max((v.align for _, v in extern), default=16)
        kernel.dynamic_shared_offset = -(-start // align) * align
        for table, v in extern:
            table[v.name] = Variable(v.name, "shared", kernel.dynamic_shared_offset, 0, v.align)

    # -- instructions --------------------------------------------------------------------------------------

    def _instruction(self, body, scope, line, source, role_source):
        text = " ".join(body.split())
        guard = None
        if body[0] == "@":
            m = _GUARD.match(body)
            register = scope.find("registers", m[2])
            if not isinstance(register, Pred):
                self._refuse(f"{m[2]} is not a predicate", None, text, line)
            guard = (register.index, m[1] == "!")
            body = m[3]
        opcode, rest = calls.rewritten(*_OPCODE.match(body).groups())
        operands = (
            tuple(self._operand(o, scope, opcode, text, line) for o in _split(rest)) if rest else ()
        )
        opcode = calls.in_local_memory(opcode, operands)
        return Instruction(opcode, operands, guard, line, source, text, role_source)

    def _operand(self, word, scope, opcode, text, line):
        register = scope.find("registers", word)
        if register is not None:
            return register
        first = word[0]
        if first == "{":
            return Vec(
                tuple(self._operand(o, scope, opcode, text, line) for o in _split(word[1:-1]))
            )
        if first == "[":
            return self._address(word[1:-1], scope, opcode, text, line)
        if word == "_":
            return Sink()
        if first == "!":
            return Pred(self._operand(word[1:].strip(), scope, opcode, text, line).index, True)
        if "|" in word:
            a, b = word.split("|")
            return Pair(*(self._operand(o.strip(), scope, opcode, text, line) for o in (a, b)))
        constant = literals.constant(word, opcode)
        if constant is not None:
            return constant
        if word in SPECIAL_REGISTERS:
            return Special(word)
        variable = self.kernel.variables.get(word) or self.module.variables.get(word)
        if variable is not None:
            return Symbol(word, variable.space, variable.offset)
        label = scope.find("labels", word)
        if label is not None:
            return Label(label)
        plus = re.fullmatch(rf"({_NAME})\s*\+\s*(\d+)", word)
        if plus:
            base = self._operand(plus[1], scope, opcode, text, line)
            return Symbol(base.name, base.space, base.offset + int(plus[2]))
        self._refuse(
            f"operand {word} is neither a register, a constant, a variable nor a label",
            None,
            text,
            line,
        )

    def _address(self, inner, scope, opcode, text, line):
        parts = _split(inner)
        m = re.fullmatch(r"(.*?)\s*([+-]\s*-?\s*(?:0[xX])?[0-9a-fA-F]+)?", parts[0].strip(), re.S)
        base, offset = m[1], m[2]
        if not base:  # a plain number such as [-4] or [1024]
            base, offset = parts[0], None
        coords = None
        if len(parts) > 1:
            items = self._operand(parts[1], scope, opcode, text, line)
            coords = items.items if isinstance(items, Vec) else (items,)
        number = int(offset.replace(" ", "").replace("+-", "-"), 0) if offset else 0
        return Addr(self._operand(base, scope, opcode, text, line), number, coords)

    def _line(self, at):
        return bisect_right(self.line_starts, at)

    def _refuse(self, why, at, what, line=None):
        line = line if line is not None else self._line(at)
        source = getattr(self, "source", None)
        python = f"\n  Python line {source[0]}:{source[1]}" if source else ""
        raise UnknownInstruction(f"{why}\n  PTX line {line}: {what}{python}")


def _split(text):
    """Split at the commas that are not inside braces or brackets."""
    if "{" not in text and "[" not in text:
        return [part.strip() for part in text.split(",")]
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        if c in "{[":
            depth += 1
        elif c in "}]":
            depth -= 1
        elif c == "," and not depth:
            parts.append(text[start:i].strip())
            start = i + 1
    parts.append(text[start:].strip())
    return parts


def _hide_strings(text):
    """Blank out string literals, which may contain any of the characters the parser looks for."""
    return _STRING.sub(lambda m: '"' + " " * (len(m[0]) - 2) + '"', text) if '"' in text else text
