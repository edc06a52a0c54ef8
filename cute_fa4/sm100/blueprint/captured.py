"""Tensors that the functions of a call capture: they join its aux tensors, after those that the caller gives.

    joined({"mask_mod": ScoreMod.of(same_document)}, ())    same_document(b, h, i, j): ids[i] == ids[j]
    -> ({"mask_mod": aux[0][i] == aux[0][j]}, (ids,))       the functions of aux, and the aux tensors of the call

So a function that captures tensors and one that is given them compute the same, and share a kernel.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator

import torch

from ..traced.expressions import CAPTURED
from ..traced.trace import Traced, name_of
from .score_mods import ScoreMod, renumbered


def joined(mods: dict, aux: tuple) -> tuple[dict, tuple]:
    """-> (mods, aux). mods: ScoreMods by the names of their arguments.

    A tensor that is captured twice, or captured and given, has one number. ValueError for a function that reads aux
    tensors which are not given, or a captured one with too few or too many indices.
    """
    tensors, found = list(aux), {}
    for name, mod in mods.items():
        _check_reads(name, mod, aux)
        found[name] = _bound(mod, tensors, len(aux))
    return found, tuple(x.reshape(1) if x.dim() == 0 else x for x in tensors)


def _bound(mod: ScoreMod, tensors: list, given: int) -> ScoreMod:
    """A function of the aux tensors `tensors`, which it extends by those that it captures."""
    numbers = []
    for captured, _ in mod.captured:
        known = [i for i, tensor in enumerate(tensors) if tensor is captured]
        if not known:
            tensors.append(captured)
        numbers.append(known[0] if known else len(tensors) - 1)

    def number_of(number: int) -> int:
        if number >= CAPTURED:
            return numbers[number - CAPTURED]
        return number + given if number < 0 else number

    key = mod.key, tuple(numbers), given
    if key not in _known:
        _known[key] = renumbered(mod, number_of)
    return _known[key]


_known: dict[tuple, ScoreMod] = {}


def _check_reads(name: str, mod: ScoreMod, aux: tuple) -> None:
    for part in mod.parts:
        if not isinstance(part.function, Traced):
            if part.check is not None and not aux:
                raise ValueError(
                    f"aux_tensors: none of them, and {name} {part.name} reads aux[0]; accepted: the tensors that it "
                    "reads; captured tensors come after them"
                )
            continue
        part.function.check(aux)
    for i, (tensor, _) in enumerate(mod.captured):
        axes = max(1, tensor.dim())
        for part in mod.parts:
            reads = part.function.reads if isinstance(part.function, Traced) else ()
            wrong = [n for number, n in reads if number == CAPTURED + i and n != axes]
            if wrong:
                raise ValueError(
                    f"{name}: {called(mod, i)}: shape {tuple(tensor.shape)}, read with {wrong[0]} indices; accepted: "
                    "one index for each dimension"
                )


def called(mod: ScoreMod, number: int) -> str:
    """A captured tensor in messages: "my_module.alibi captures slopes"."""
    tensor, function = mod.captured[number]
    names = (name for name, value in _values(function) if value is tensor)
    name = next(names, f"a tensor of shape {tuple(tensor.shape)}")
    return f"{name_of(function)} captures {name}"


def _values(function, inside: tuple = ()) -> Iterator[tuple[str, object]]:
    """(name, value) of what a function may read."""
    if any(function is outer for outer in inside) or len(inside) > 4:
        return
    inside = (*inside, function)
    if isinstance(function, functools.partial):
        found = [(f"argument {i}", x) for i, x in enumerate(function.args)]
        found += [*function.keywords.items(), ("func", function.func)]
    elif isinstance(function, types.MethodType):
        found = [*_of_object(function.__self__), ("", function.__func__)]
    elif isinstance(function, types.FunctionType):
        found = _of_function(function)
    elif isinstance(function, (tuple, list)):
        found = [("", x) for x in function]
    else:
        found = _of_object(function)
    for name, value in found:
        if isinstance(value, torch.Tensor):
            yield name, value
        elif callable(value) or isinstance(value, (tuple, list)):
            yield from _values(value, inside)


def _of_function(function) -> list:
    code, found = function.__code__, []
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            found.append((name, cell.cell_contents))
        except ValueError:  # empty
            continue
    defaults = function.__defaults__ or ()
    named = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    found += [*zip(named, defaults, strict=True), *(function.__kwdefaults__ or {}).items()]
    read = function.__globals__
    return found + [(name, read[name]) for name in code.co_names if name in read]


def _of_object(instance) -> list:
    found = [(f".{name}", value) for name, value in getattr(instance, "__dict__", {}).items()]
    if isinstance(instance, torch.nn.Module):
        found += [(f".{name}", x) for name, x in instance.named_parameters()]
        found += [(f".{name}", x) for name, x in instance.named_buffers()]
    return found
