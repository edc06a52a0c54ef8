"""The names that a function reads from outside, and whether their values can change unnoticed.

Tracing determines the computation of a function. The next call skips the tracing only if everything that the
function reads is immutable and unchanged:

    constants in its code          immutable
    closure, defaults, globals     read again at every call, which takes a fraction of a microsecond; their values are
                                   numbers, strings, tuples of such, or functions of which the same holds
    attributes of modules          the same
    math, cutlass, torch.where...  taken as immutable
    tensors in these places        the same tensors: what they hold is data of the call, not part of the computation,
                                   if the function only reads elements at its indices (read_tensors.Recorder.is_steady),
                                   and the tensors have no attributes of Python, of their own or of a subclass

Anything else (an instance and its attributes, a list, a dictionary, an unknown builtin) may change inside, so the
function is traced at every call.
"""

from __future__ import annotations

import builtins
import dis
import types
import weakref

import torch

from .operations import is_traceable_torch

_MISSING = object()
_IMMUTABLE = (bool, int, float, complex, str, bytes, type(None), type(...), range)
_PACKAGES = ("cutlass", "math")
# Builtins with the same result for the same arguments.
_BUILTINS = frozenset(
    "abs all any bool divmod enumerate float int isinstance len list map max min pow range reversed round slice "
    "sorted sum tuple zip AssertionError IndexError TypeError ValueError".split()
)
_FORBIDDEN = (
    "STORE_GLOBAL",
    "DELETE_GLOBAL",
    "STORE_ATTR",
    "DELETE_ATTR",
    "LOAD_NAME",
    "IMPORT_STAR",
)


class Mutable(Exception):
    """The function reads something that may change unnoticed."""


class _Weak:
    """A tensor or function that a function reads, which stays free to be deleted."""

    __slots__ = ("facts", "of")

    def __init__(self, value):
        self.of, self.facts = weakref.ref(value), _facts(value)

    def is_still(self, value) -> bool:
        return self.of() is value and _facts(value) == self.facts


def _facts(value) -> tuple:
    return (value.shape, value.dtype, _is_plain(value)) if isinstance(value, torch.Tensor) else ()


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether it has no attributes that could change but those of every tensor."""
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and not tensor.__dict__


def _kept(value):
    """What is compared with `value` later, by _same."""
    if type(value) is tuple:
        return tuple(map(_kept, value))
    return _Weak(value) if isinstance(value, (torch.Tensor, types.FunctionType)) else value


class Reads:
    """The values that a plain function reads, recorded at construction."""

    __slots__ = (
        *("closed", "defaults", "functions", "keywords", "named", "of_globals"),
        "reads_tensors",
    )

    def __init__(self, function, inside: tuple = ()):
        """Raises Mutable."""
        code = function.__code__
        if function.__dict__ or code in inside:
            raise Mutable
        self.functions: list = []  # (weak reference to a function, its code, its Reads)
        self.named: list = []  # (dictionary, name, value)
        self.reads_tensors = False
        self.of_globals = function.__globals__
        self.defaults, self.keywords = function.__defaults__, function.__kwdefaults__
        inside = (*inside, code)
        self._check(self.defaults, inside)
        self._check(tuple((self.keywords or {}).values()), inside)
        self.defaults = _kept(self.defaults)
        if self.keywords:
            self.keywords = {name: _kept(value) for name, value in self.keywords.items()}
        closed = _contents(function)
        for value in closed:
            self._check(value, inside)
        self.closed = tuple(map(_kept, closed))
        for chain in _chains(code):
            self._follow(chain, inside)

    def hold_for(self, function) -> bool:
        """Whether a function of the same code reads the same."""
        if function.__globals__ is not self.of_globals or function.__dict__:
            return False
        closure = function.__closure__
        if closure is not None:
            for cell, value in zip(closure, self.closed, strict=True):
                try:
                    if not _same(cell.cell_contents, value):
                        return False
                except ValueError:  # an empty cell
                    return False
        for dictionary, name, value in self.named:
            found = dictionary.get(name, _MISSING)
            if found is not value and not (type(value) is _Weak and value.is_still(found)):
                return False
        if not (
            _same(function.__defaults__, self.defaults)
            and (
                function.__kwdefaults__ is self.keywords is None
                or _same_values(function.__kwdefaults__, self.keywords)
            )
        ):
            return False
        return all(_holds(of(), code, reads) for of, code, reads in self.functions)

    def _check(self, value, inside: tuple) -> None:
        if _is_constant_package(value) or _is_of_compiler(value) or _is_pure_torch(value):
            return
        if isinstance(value, types.FunctionType):
            reads = Reads(value, inside)
            self.functions.append((weakref.ref(value), value.__code__, reads))
            self.reads_tensors |= reads.reads_tensors
        elif isinstance(value, torch.Tensor):
            if not _is_plain(value):
                raise Mutable
            self.reads_tensors = True
        elif type(value) is tuple:
            for item in value:
                self._check(item, inside)
        elif type(value) not in _IMMUTABLE:
            raise Mutable

    def _follow(self, chain: tuple, inside: tuple) -> None:
        """A global name and the attributes read from it, as far as they are attributes of modules."""
        name, *attributes = chain
        value = self.of_globals.get(name, _MISSING)
        self.named.append((self.of_globals, name, _kept(value)))
        if value is _MISSING:
            if name not in _BUILTINS:
                raise Mutable
            self.named.append((builtins.__dict__, name, getattr(builtins, name, _MISSING)))
            return
        for attribute in attributes:
            if not isinstance(value, types.ModuleType) or _is_constant_package(value):
                break
            if value.__name__ == "torch" and is_traceable_torch(attribute):
                return
            found = value.__dict__.get(attribute, _MISSING)
            self.named.append((value.__dict__, attribute, _kept(found)))
            value = found
        self._check(value, inside)


def _holds(function, code, reads: Reads) -> bool:
    return function is not None and function.__code__ is code and reads.hold_for(function)


def _is_pure_torch(value) -> bool:
    """A torch function known to expressions, imported by name, or a dtype."""
    if type(value).__module__ == "torch" and type(value).__name__ == "dtype":
        return True
    of_torch = isinstance(value, types.BuiltinFunctionType) and "torch" in str(value.__module__)
    return of_torch and is_traceable_torch(value.__name__)


def _is_constant_package(value) -> bool:
    """math, cutlass and their submodules: their contents are taken as constant."""
    return isinstance(value, types.ModuleType) and value.__name__.split(".")[0] in _PACKAGES


def _is_of_compiler(value) -> bool:
    """A class or function of cutlass, or of math."""
    if not isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        return False
    return str(value.__module__).split(".")[0] in _PACKAGES


def _contents(function) -> tuple:
    try:
        return tuple(cell.cell_contents for cell in function.__closure__ or ())
    except ValueError:
        raise Mutable from None


def _same(a, b) -> bool:
    """Equal, of one type, and equal in everything that a function could see: 0.0 and -0.0 differ."""
    if a is b:
        return True
    if type(b) is _Weak:
        return b.is_still(a)
    if type(a) is not type(b):
        return False
    if type(a) is tuple:
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    return type(a) in _IMMUTABLE and a == b and repr(a) == repr(b)


def _same_values(a, b) -> bool:
    if a is None or b is None:
        return a is b
    return list(a) == list(b) and all(_same(a[name], b[name]) for name in a)


def _chains(code) -> set[tuple]:
    """Global names that the code reads, each with the attributes that it reads from it. Raises Mutable."""
    found: set[tuple] = set()
    if any(name.startswith("__") for name in code.co_names):
        raise Mutable
    instructions = [i for i in dis.get_instructions(code) if i.opname not in _NO_EFFECT]
    for number, instruction in enumerate(instructions):
        if instruction.opname in _FORBIDDEN:
            raise Mutable
        if instruction.opname == "STORE_DEREF" and instruction.argval in code.co_freevars:
            raise Mutable
        if (
            instruction.opname == "IMPORT_NAME"
            and instruction.argval.split(".")[0] not in _PACKAGES
        ):
            raise Mutable
        if instruction.opname == "LOAD_GLOBAL":
            chain = [instruction.argval]
            for after in instructions[number + 1 :]:
                if after.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
                    break
                chain.append(after.argval)
            found.add(tuple(chain))
        elif instruction.opname.startswith(
            ("LOAD_CLASSDEREF", "LOAD_FROM_DICT", "LOAD_BUILD_CLASS")
        ):
            raise Mutable
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _chains(constant)
    return found


_NO_EFFECT = ("CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "PUSH_NULL")
