"""A traced function of a score: its computation as data, from which its key and the kernel's code are made.

    traced(function, "score_mod")    called with symbols (symbols.py); where it handles values of the compiler,
                                     staged into MLIR (staged.py)

A function is given its indices and, where it takes one more argument, aux. Partials, bound methods and callable
objects are functions; values that they read from elsewhere are read during tracing, and are part of the computation.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import re
from dataclasses import dataclass
from functools import cached_property

import torch

from ...system.messages import shown
from . import expressions
from .expressions import CAPTURED, INDICES
from .read_tensors import Aux, Recorder
from .shared import arguments_of
from .slopes import factor_of, operands_of, slope_of
from .symbols import NeedsCompiler, Symbol, Untraceable, kind_of, operand

SCORE, MASK = "score_mod", "mask_mod"
_ACCEPTED = {
    SCORE: "a score, Float32 or a number",
    MASK: "a comparison, such as kv_idx <= q_idx or aux[0][batch, kv_idx] != 0, True or False",
}
_FORGOTTEN = {SCORE: "score", MASK: "condition"}


@dataclass(frozen=True, eq=False)
class Element:
    """An element of an aux tensor that a score function reads.

    tensor   its number; from 0 on
    indices  nodes of each index
    slope    the derivative of the function by the element
    """

    tensor: int
    indices: tuple[list, ...]
    slope: Traced


@dataclass(frozen=True, eq=False)
class Traced:
    """The computation of a function.

    kind   score_mod or mask_mod
    nodes  of an expression; None: text is a module of MLIR
    reads  (aux tensor, how many indices), sorted
    factor nodes of what gradients are multiplied by, if the caller has said so; None: the derivative by the score
    """

    kind: str
    nodes: list | None
    text: str | None
    reads: tuple
    factor: list | None = None

    @cached_property
    def key(self) -> str:
        """The same for functions that compute the same by the same operations, in every process."""
        return hashlib.sha256(json.dumps(self.data(), sort_keys=True).encode()).hexdigest()[:24]

    def data(self) -> dict:
        """JSON-ready."""
        code = {"expression": self.nodes} if self.text is None else {"mlir": self.text}
        backward = {} if self.factor is None else {"factor": self.factor}
        return {"of": self.kind, "reads": [list(read) for read in self.reads], **code, **backward}

    @staticmethod
    def of_data(data: dict) -> Traced:
        """ValueError for what `data` has not written."""
        try:
            kind, nodes, text = data["of"], data.get("expression"), data.get("mlir")
            if kind not in _ACCEPTED or (nodes is None) == (text is None):
                raise ValueError
            reads = tuple((i, n) for i, n in data["reads"])
            return Traced(kind, nodes, text, reads, data.get("factor"))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ValueError(f"no traced function: {shown(data)}") from None

    def check(self, aux: tuple, *_) -> None:
        """ValueError if the call's aux tensors are not those that the function reads; captured ones do not count."""
        for number, indices in self.reads:
            if number >= CAPTURED:
                continue
            if not -len(aux) <= number < len(aux):
                raise ValueError(
                    f"aux_tensors: {len(aux)} of them, and {self.kind} reads aux[{number}]; give as many as it reads"
                )
            if len(aux[number].shape) != indices:
                raise ValueError(
                    f"aux_tensors[{number}]: shape {tuple(aux[number].shape)}, and {self.kind} reads it with {indices} "
                    f"indices; accepted: one index for each dimension"
                )

    def renumbered(self, number_of) -> Traced:
        """The same with other numbers of tensors; number_of(number) -> number. Only for an expression."""
        nodes = _renumbered(self.nodes, number_of)
        factor = None if self.factor is None else _renumbered(self.factor, number_of)
        return Traced(self.kind, nodes, None, reads_of(nodes, factor), factor)

    def with_factor(self, function, recorder: Recorder) -> Traced:
        """The same with a function of the caller, which multiplies its first argument, grad, by the factor.

        recorder: the one that has traced self. TypeError for a function that does anything else.
        """
        given = functools.partial(function, Symbol("arg", ("grad",), "float"))
        if not any(takes(given, SCORE, aux=aux) for aux in (True, False)):
            raise TypeError(
                f"backward: {name_of(function)}: its parameters; accepted: backward(grad, score, batch, head, q_idx, "
                "kv_idx, aux), or without aux"
            )
        of_grad = traced(given, SCORE, recorder)
        try:
            if of_grad.nodes is None:
                raise ValueError("values of the compiler (cutlass)")
            factor = factor_of(of_grad.nodes)
        except ValueError as error:
            raise TypeError(
                f"backward: {name_of(function)} is not grad times a factor ({error}); accepted: grad multiplied or "
                "divided by what does not depend on it, sums and torch.where of such, 0.0"
            ) from None
        reads = tuple(sorted({*self.reads, *reads_of(factor)}))
        if self.nodes is None and reads:
            raise TypeError(
                f"backward: {name_of(function)}, of a function that handles values of the compiler (cutlass) and reads "
                "aux; accepted beside aux: functions of operators and functions of torch"
            )
        return Traced(self.kind, self.nodes, self.text, reads, factor)

    @property
    def arguments(self) -> set[str] | None:
        """Names of the arguments that the value or the factor depends on; None: not known, of MLIR."""
        return None if self.nodes is None else arguments_of(self.nodes + (self.factor or []))

    @property
    def has_slope(self) -> bool:
        return self.nodes is not None or self.factor is not None

    @cached_property
    def slope(self) -> Traced:
        """The derivative by the score, or the factor of the caller. For what has_slope: MLIR alone has none."""
        nodes = slope_of(self.nodes) if self.factor is None else self.factor
        zero = [["const", expressions.constant(0.0)]]
        return Traced(self.kind, zero if nodes is None else nodes, None, self.reads)

    @cached_property
    def elements(self) -> tuple[Element, ...]:
        """The elements of aux tensors that the value depends on smoothly. For what has_slope."""
        found = []
        for number, node in enumerate(self.nodes or ()):
            slope = slope_of(self.nodes, number) if node[0] == "read" else None
            if slope is not None:
                of_element = Traced(self.kind, slope, None, self.reads)
                found.append(Element(node[1], tuple(operands_of(self.nodes, number)), of_element))
        return tuple(found)

    def on_tensors(self, *numbers, aux=(), **facts):
        """The same in float64, of tensors that broadcast: score and indices, or indices.

        facts: expressions.FACTS, as far as the function reads them. ValueError for a function of the compiler.
        """
        from . import on_tensors

        if self.nodes is None:
            raise ValueError("a function of the compiler (cutlass) runs in kernels only")
        names = ("score",) * (self.kind == SCORE) + INDICES
        named = dict(zip(names, numbers, strict=True)) | facts
        return on_tensors.evaluated(self.nodes, named, aux)

    def __call__(self, *given):
        """The value in a kernel that is being built: score and indices, or indices; then aux."""
        *numbers, aux = given
        names = ("score",) * (self.kind == SCORE) + INDICES
        facts = [getattr(aux, name) for name in expressions.FACTS]
        tensors = tuple(zip(aux.tensors, aux.dtypes, strict=True))
        if self.text is not None:
            from .staged import inlined

            return inlined(self.text, [*numbers, *facts], tensors)
        from .evaluation import evaluated

        named = dict(zip((*names, *expressions.FACTS), (*numbers, *facts), strict=True))
        return evaluated(self.nodes, named | aux.places, tensors)


def traced(function, kind: str, recorder: Recorder | None = None) -> Traced:
    """TypeError, with the name of the function, for one that cannot be traced or returns something else.

    recorder: a new one, which then has the tensors that the function captures
    """
    try:
        return _traced(_with_aux(function, kind), function, kind, recorder or Recorder())
    except Untraceable as error:
        raise TypeError(f"{name_of(function)}: {error}") from error
    except IndexError as error:  # by which numpy refuses an index
        raise TypeError(
            f"{name_of(function)}: {error}; a traced value is no index of a list or of numpy: give tables as "
            "aux_tensors, which are read as aux[0][...]"
        ) from error
    except RecursionError as error:
        raise TypeError(
            f"{name_of(function)}: more operations than can be traced; give tables as aux_tensors"
        ) from error


def _traced(call, function, kind: str, recorder: Recorder) -> Traced:
    of_score = kind == SCORE
    try:
        with recorder:
            return _as_expression(call, function, kind)
    except Exception as error:
        if not _is_of_compiler(error):
            raise
    recorder.tensors.clear()  # the compiler's values meet none
    try:
        from .staged import WrongResult, staged
    except ImportError as error:
        raise Untraceable(
            f"it calls the compiler, which is not installed ({error}); write torch.where, torch.exp and the like"
        ) from error
    try:
        text, reads = staged(call, of_score)
    except WrongResult as wrong:
        raise _wrong_result(wrong.args[0], function, kind) from None
    except (Untraceable, NameError, ImportError):
        raise
    except Exception as error:
        raise Untraceable(
            f"cannot be staged: {_said(error)}; write cutlass.select_ for if, and, or, min and max, "
            "cute.math for functions, and .to(cutlass.Float32) for elements of aux_tensors"
        ) from error
    return Traced(kind, None, text, tuple(sorted(reads)))


def _said(error: Exception) -> str:
    """The compiler's message, without colours and line breaks."""
    words = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split()
    return f"{type(error).__name__}: {' '.join(words)[:300]}"


def _as_expression(call, function, kind: str) -> Traced:
    arguments = [Symbol("arg", (name,), "int") for name in INDICES]
    if kind == SCORE:
        arguments.insert(0, Symbol("arg", ("score",), "float"))
    root = call(*arguments, Aux())
    if type(root).__module__.partition(".")[0] == "cutlass":
        raise NeedsCompiler
    if not isinstance(root, (Symbol, bool, int, float)):
        raise _wrong_result(root, function, kind)
    root = operand(root)
    found = kind_of(root)
    plain = not isinstance(root, Symbol)
    is_right = found != "bool" if kind == SCORE else found in ("bool",) + ("any",) * (not plain)
    if not is_right:
        raise _wrong_result(root, function, kind)
    nodes = expressions.data_of(root)
    return Traced(kind, nodes, None, reads_of(nodes))


def reads_of(*several: list | None) -> tuple:
    return tuple(sorted(set().union(*(expressions.reads_of(nodes or []) for nodes in several))))


def _renumbered(nodes: list, number_of) -> list:
    return [
        [op, number_of(args[0]), *args[1:]] if op in ("read", "size") else [op, *args]
        for op, *args in nodes
    ]


def _is_of_compiler(error: Exception) -> bool:
    """Whether the function failed because it needs compiler values: it was given symbols instead."""
    if isinstance(error, NeedsCompiler):
        return True
    trace = error.__traceback__
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] == "cutlass":
            return True
        trace = trace.tb_next
    return False


def _wrong_result(value, function, kind: str) -> TypeError:
    what = shown(value)
    if isinstance(value, Symbol):
        what = {"bool": "a comparison", "int": "Int32", "float": "Float32"}[value.kind]
    elif type(value).__module__.partition(".")[0] == "cutlass":
        what = "a comparison" if type(value).__name__ == "Boolean" else type(value).__name__
    told = f"{name_of(function)} returned {what}; accepted: {_ACCEPTED[kind]}"
    if value is None:
        told += f"; return the {_FORGOTTEN[kind]}: a function without return returns None"
    elif kind == SCORE and what == "a comparison":
        told += "; a function that hides keys is a mask_mod, or returns torch.where(visible, score, -torch.inf)"
    return TypeError(told)


def name_of(function) -> str:
    """The name of a function in messages.

    >>> import functools
    >>> name_of(functools.partial(max, 1)), name_of(len)
    ('functools.partial(builtins.max)', 'builtins.len')
    """
    inner = getattr(function, "func", None)
    if inner is not None and type(function).__name__ == "partial":
        return f"functools.partial({name_of(inner)})"
    name = getattr(function, "__qualname__", None)
    if not isinstance(name, str):
        kind = type(function)
        return f"{kind.__module__}.{kind.__qualname__}"
    return f"{getattr(function, '__module__', None)}.{name}"


def _with_aux(function, kind: str):
    """The function as one of its numbers and aux; it may ignore aux."""
    if takes(function, kind, aux=True):
        return function
    if takes(function, kind, aux=False):
        return lambda *given: function(*given[:-1])
    numbers = ", ".join(("score",) * (kind == SCORE) + ("batch", "head", "q_idx", "kv_idx"))
    raise Untraceable(f"its parameters; accepted: {kind}({numbers}, aux), or without aux")


def takes(function, kind: str, *, aux: bool) -> bool:
    """Whether a function can be called with the numbers of a score_mod or mask_mod, and aux.

    A parameter in the place of aux that has a default is something else, such as window=window, unless it is named aux.
    """
    numbers = (kind == SCORE) + len(INDICES)
    code = getattr(function, "__code__", None)
    if code is not None and inspect.isfunction(function) and not hasattr(function, "__wrapped__"):
        least = code.co_argcount - len(function.__defaults__ or ())
        if code.co_kwonlyargcount - len(function.__kwdefaults__ or ()):
            return False
        if code.co_argcount <= numbers:
            has_more = bool(code.co_flags & inspect.CO_VARARGS)
        else:
            has_more = least > numbers or code.co_varnames[numbers].startswith("aux")
        most = numbers + 1 if code.co_flags & inspect.CO_VARARGS else code.co_argcount
        return least <= numbers + aux <= most and (has_more or not aux)
    if isinstance(function, torch.nn.Module):  # its call arguments go to its forward
        function = function.forward
    try:
        signature = inspect.signature(function)
        signature.bind(*range(numbers + aux))
    except TypeError:
        return False
    except ValueError:  # a C function without a signature
        return aux
    if not aux:
        return True
    parameters = [p for p in signature.parameters.values() if p.kind is not p.KEYWORD_ONLY]
    place = parameters[min(numbers, len(parameters) - 1)]
    return place.default is place.empty or place.name.startswith("aux")
