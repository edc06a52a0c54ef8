"""The table of PTX instructions: opcode -> the one function that is its meaning.

                      written as                  executed by
    control, memory   @instruction(opcodes)       Python, function(warp, ins)
    arithmetic        @lanes(opcodes, c=...)      generated C (lanes.py); the NumPy meaning is oracle and fallback

    lookup(opcode)    -> Entry, callable as entry(warp, ins); raises UnknownInstruction
    is_lanes(opcode)  -> True when the opcode is register arithmetic that lanes.py can execute

The modules of ``instructions/`` fill the table when they are imported; the first lookup imports them. They fill a
separate table, which is added when it is complete: an import interrupted by an exception (Ctrl-C) has no effect.
"""

import contextlib
import difflib
import importlib
import inspect
import itertools
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from cute_fa4.emulator.ptx.lane_types import TYPES, LaneType


@dataclass(frozen=True)
class Entry:
    """One row of the table: what to call for an opcode.

    function  Python handler (warp, ins) -> None | Wait
    aligned   the PTX opcode has .aligned: all live lanes of the warp must execute it together
    forms     register arithmetic only: (number of results, number of sources) -> LaneOperation
    """

    opcode: str
    function: Callable
    aligned: bool = False
    forms: dict = field(default_factory=dict)

    def __call__(self, warp, ins):
        return self.function(warp, ins)


@dataclass
class _Table:
    """The registrations of decorators.

    later  pattern of opcodes -> the function that registers them when one of them is looked up
    whole  whether it has the families of ``instructions/``
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    patterns: list[tuple[re.Pattern, Callable, bool]] = field(default_factory=list)
    refusals: list[tuple[re.Pattern, str]] = field(default_factory=list)
    later: dict[re.Pattern, Callable] = field(default_factory=dict)
    whole: bool = False


_FAMILIES = "cute_fa4.emulator.instructions"
_table = _Table()
_being_filled: _Table | None = None  # during the import of the families


@contextlib.contextmanager
def filling():
    """Context in which ``instructions/__init__.py`` imports the families; it adds their opcodes at the end."""
    global _table, _being_filled
    if not _table.whole:
        # An earlier attempt may have been interrupted anywhere: modules that it imported register again.
        for name in [name for name in sys.modules if name.startswith(f"{_FAMILIES}.")]:
            del sys.modules[name]
        _being_filled = _Table()
    new = _being_filled
    try:
        yield
    finally:
        _being_filled = None
    if _table.whole:
        return
    for opcode in new.entries.keys() & _table.entries.keys():
        raise _registered_twice(_table.entries[opcode], new.entries[opcode])
    # A single assignment adds all families at once.
    _table = _Table(
        {**_table.entries, **new.entries},
        [*_table.patterns, *new.patterns],
        [*_table.refusals, *new.refusals],
        {**_table.later, **new.later},
        whole=True,
    )


def _registering() -> _Table:
    """The table that decorators add to now."""
    return _table if _being_filled is None else _being_filled


def instruction(*opcodes, pattern=None, aligned=False):
    """Register ``f(warp, ins)`` as the meaning of the given opcodes, or ``f(warp, ins, match)`` of a pattern.

    pattern is a regular expression that the whole opcode must match. Raises ValueError if an opcode
    has a meaning already.
    """
    if bool(opcodes) == (pattern is not None):
        raise ValueError("@instruction takes opcodes or a pattern, one of the two")

    def register(function):
        for opcode in opcodes:
            _add(Entry(opcode, function, aligned))
        if pattern is not None:
            _registering().patterns.append((re.compile(pattern), function, aligned))
        return function

    return register


def refuse(pattern, why):
    """Make lookup refuse opcodes that match pattern, with the reason ``why`` in the message."""
    _registering().refusals.append((re.compile(pattern), why))


def later(pattern):
    """Register ``f()``, which registers the opcodes that match ``pattern`` when one of them is looked up.

    For families of hundreds of opcodes that few programs use: a process starts without them.
    """

    def register(function):
        _registering().later[re.compile(pattern)] = function
        return function

    return register


def _register_later(opcode):
    """Call what later() registered for the opcode; None: for all opcodes."""
    global _table, _being_filled
    for pattern in list(_whole_table().later):
        if opcode is not None and not pattern.fullmatch(opcode):
            continue
        _being_filled = new = _Table()
        try:
            _table.later[pattern]()
        finally:
            _being_filled = None
        for each in new.entries.keys() & _table.entries.keys():
            raise _registered_twice(_table.entries[each], new.entries[each])
        # As in filling(): a single assignment adds them, so an interrupted call has no effect.
        left = {p: function for p, function in _table.later.items() if p is not pattern}
        _table = replace(_table, entries={**_table.entries, **new.entries}, later=left)


def lookup(opcode, ins=None):
    """The Entry of an opcode; call it as ``entry(warp, ins)``.

    ins, when given, adds the PTX line and the Python line to the UnknownInstruction that is raised
    for an opcode without a meaning.
    """
    entry = find(opcode)
    if entry is None:
        raise _unknown(opcode, ins)
    return entry


def find(opcode):
    """The Entry of an opcode, or None without a meaning."""
    _register_later(opcode)
    table = _whole_table()
    entry = table.entries.get(opcode)
    if entry is not None:
        return entry
    for pattern, function, aligned in table.patterns:
        match = pattern.fullmatch(opcode)
        if match:
            entry = Entry(opcode, _bind(function, match), aligned)
            table.entries[opcode] = entry
            return entry
    return None


def is_lanes(opcode):
    """True when generated C can execute the opcode (see lanes.py)."""
    _register_later(opcode)
    entry = _whole_table().entries.get(opcode)
    return entry is not None and bool(entry.forms)


def lane_operations():
    """All LaneOperations, in the order in which they were registered."""
    _register_later(None)
    return [
        operation for entry in _whole_table().entries.values() for operation in entry.forms.values()
    ]


# --- register arithmetic ---------------------------------------------------------------------------


@dataclass(frozen=True)
class LaneOperation:
    """One opcode with one number of operands: its meaning in each lane, in C and in NumPy.

    c        C statement; sources are a, b, c, h and results d, e, f, g (PTX writes d = op(a, b, c))
    meaning  NumPy function of the decoded sources; returns the result, or a tuple of results
    """

    opcode: str
    results: tuple[LaneType, ...]
    sources: tuple[LaneType, ...]
    c: str
    meaning: Callable
    family: str

    @property
    def name(self):
        """C name, unique among all forms of all opcodes."""
        parts = (
            self.opcode.replace(".", "_").replace("::", "_"),
            len(self.results),
            len(self.sources),
        )
        return "_".join(map(str, parts))

    @property
    def count(self):
        """Elements to loop over: 64 for packed pairs, else 32."""
        return max(kind.count for kind in self.results + self.sources)

    def compute(self, registers):
        """Source registers (uint32/uint64[32], bool[32]) -> tuple of result registers, by the NumPy meaning."""
        values = [
            kind.decode(register) for kind, register in zip(self.sources, registers, strict=True)
        ]
        with np.errstate(all="ignore"):
            results = self.meaning(*values)
        results = results if isinstance(results, tuple) else (results,)
        return tuple(kind.encode(value) for kind, value in zip(self.results, results, strict=True))


def lanes(*templates, types, c, **choices):
    """Register a function as the NumPy meaning of register arithmetic, next to its C statement.

    templates  opcodes; "{t}" stands for each value of the keyword ``t`` in turn (all combinations)
    types      "results <- sources", e.g. "u32 <- u32 u32"; "{t}" as above
    c          C statement on d (e f g) and a b c h; "{t}" as above with "." written as "_"
    choices    name -> the values it takes, a list or a string of words

    The meaning receives the decoded sources in order, and the choices it names as keyword arguments.

    >>> @lanes("min.{t}", t="u32 s32", types="{t} <- {t} {t}", c="d = a < b ? a : b")     # doctest: +SKIP
    ... def minimum(a, b):
    ...     return np.minimum(a, b)
    """
    names = list(choices)
    values = [v.split() if isinstance(v, str) else list(v) for v in choices.values()]

    def register(meaning):
        wanted = [
            parameter.name
            for parameter in inspect.signature(meaning).parameters.values()
            if parameter.kind is parameter.KEYWORD_ONLY
        ]
        for combination in itertools.product(*values):
            choice = dict(zip(names, combination, strict=True))
            results, sources = _fill(types, choice).split("<-")
            kinds = [tuple(TYPES[word] for word in side.split()) for side in (results, sources)]
            statement = _fill(c, {name: value.replace(".", "_") for name, value in choice.items()})
            keywords = {name: choice[name] for name in wanted}
            bound = _with_keywords(meaning, keywords) if keywords else meaning
            for template in templates:
                opcode = _fill(template, choice)
                _add_form(LaneOperation(opcode, *kinds, statement, bound, meaning.__module__))
        return meaning

    return register


def _fill(template, choice):
    return re.sub(r"\{(\w+)\}", lambda match: choice[match.group(1)], template)


def _with_keywords(meaning, keywords):
    def bound(*values):
        return meaning(*values, **keywords)

    bound.__name__ = meaning.__name__
    bound.__doc__ = meaning.__doc__
    return bound


def _add_form(operation):
    entry = _registering().entries.get(operation.opcode)
    if entry is None:
        forms = {}
        entry = Entry(operation.opcode, _numpy_handler(operation.opcode, forms), forms=forms)
        _add(entry)
    shape = (len(operation.results), len(operation.sources))
    if shape in entry.forms or not operation.results:
        raise ValueError(f"{operation.opcode} with {shape} (results, sources) is registered twice")
    entry.forms[shape] = operation


def form_of(ins):
    """(LaneOperation, result operands, source operands) of an instruction; UnknownInstruction if none fits.

    The first operand holds the results, the others the sources; {a, b} and p|q count as two operands.
    """
    results = flatten(ins.operands[:1])
    sources = flatten(ins.operands[1:])
    forms = lookup(ins.opcode, ins).forms
    operation = forms.get((len(results), len(sources)))
    if operation is None:
        raise _unknown(f"{ins.opcode} with {len(results)} results and {len(sources)} sources", ins)
    return operation, results, sources


def flatten(operands):
    """The operands with {a, b} vectors and p|q pairs replaced by their items."""
    from cute_fa4.emulator.ptx.parser import Pair, Vec

    flat = []
    for operand in operands:
        if isinstance(operand, Vec):
            flat += operand.items
        elif isinstance(operand, Pair):
            flat += (operand.first, operand.second)
        else:
            flat.append(operand)
    return flat


def _numpy_handler(opcode, forms):
    """handler(warp, ins) that executes a lanes opcode through its NumPy meaning."""

    def handler(warp, ins):
        operation, results, sources = form_of(ins)
        registers = []
        for kind, operand in zip(operation.sources, sources, strict=True):
            if kind.rows == 0:
                registers.append(_bits_to_bool(warp.read_pred(operand)))
            else:
                registers.append((warp.read64 if kind.rows == 2 else warp.read32)(operand))
        for kind, operand, value in zip(
            operation.results, results, operation.compute(registers), strict=True
        ):
            if kind.rows == 0:
                warp.write_pred(operand, _bool_to_bits(value))
            else:
                (warp.write64 if kind.rows == 2 else warp.write32)(operand, value)

    handler.__name__ = opcode
    return handler


def _bits_to_bool(mask):
    return (np.uint32(mask) >> np.arange(32, dtype=np.uint32) & np.uint32(1)).astype(bool)


def _bool_to_bits(values):
    return int(np.packbits(values, bitorder="little").view("<u4")[0])


# --- filling the table --------------------------------------------------------------------------


def _bind(function, match):
    def handler(warp, ins):
        return function(warp, ins, match)

    handler.__name__ = function.__name__
    handler.__doc__ = function.__doc__
    return handler


def _add(entry):
    entries = _registering().entries
    if entry.opcode in entries:
        raise _registered_twice(entries[entry.opcode], entry)
    entries[entry.opcode] = entry


def _registered_twice(first_entry, second_entry):
    first, second = first_entry.function, second_entry.function
    return ValueError(
        f"opcode {second_entry.opcode} is registered twice: by {first.__module__}.{first.__name__} "
        f"and by {second.__module__}.{second.__name__}; keep one"
    )


def _whole_table() -> _Table:
    if not _table.whole:
        importlib.import_module(_FAMILIES)
    return _table


def _unknown(opcode, ins):
    from cute_fa4.emulator.ptx.errors import UnknownInstruction

    lines = [f"the emulator has no meaning for the PTX instruction {opcode}"]
    for pattern, why in _table.refusals:
        if pattern.fullmatch(opcode):
            lines = [f"the emulator refuses the PTX instruction {opcode}: {why}"]
    near = difflib.get_close_matches(opcode, _table.entries, n=3)
    if near:
        lines.append(f"  nearest opcodes with a meaning: {', '.join(near)}")
    if ins is not None:
        lines.append(f"  PTX line {ins.line}: {ins.text}")
        if ins.source is not None:
            lines.append(f"  Python line {ins.source[0]}:{ins.source[1]}")
    lines.append("  remedy: add its meaning to a module of cute_fa4/emulator/instructions/")
    return UnknownInstruction("\n".join(lines))
