"""The tensors that a traced function reads: those of aux, by number, and those that it captures.

    aux[0][head]      ["read", 0, head]
    slopes[head]      ["read", CAPTURED, head]; slopes is the first tensor that the function captures

A captured tensor is data, as one of aux is: the computation has its number, not its values. Its number is that of an
aux tensor once the function is part of a call (blueprint/captured.py).
"""

from __future__ import annotations

import operator

import torch
from torch.overrides import TorchFunctionMode

from .expressions import CAPTURED, FACTS
from .operations import element, torch_function
from .symbols import Symbol, Untraceable, active, operand


class Aux:
    """The aux argument while a function is traced."""

    def __init__(self):
        for name in FACTS:
            setattr(self, name, Symbol("arg", (name,), "int"))

    @property
    def tensors(self) -> Aux:
        return self

    def __getitem__(self, i):
        return AuxTensor(_plain_index("aux", i))

    def _is_no_list(self):
        raise Untraceable(
            "aux: how many tensors a call has is not known yet; write aux[0], aux[1], ..."
        )

    __iter__ = __len__ = _is_no_list


class AuxTensor:
    """One of the tensors of a call: elements, by one index per dimension, and its sizes."""

    def __init__(self, number: int):
        self._number = number

    @property
    def shape(self) -> _Shape:
        return _Shape(self._number)

    def size(self, dim):
        return self.shape[dim]

    def __getitem__(self, index) -> Symbol:
        return element(self._number, (), index)

    def __getattr__(self, name: str):
        raise Untraceable(
            f"aux[{self._number}].{name}: accepted: its elements, aux[{self._number}][...], and sizes, .shape[...]"
        )

    def __iter__(self):
        raise Untraceable(
            f"aux[{self._number}]: a loop over a tensor; accepted: its elements, one by one"
        )


class _Shape:
    def __init__(self, number: int):
        self._number = number

    def __getitem__(self, dim) -> Symbol:
        return Symbol("size", (self._number, _plain_index("shape", dim)), "int")

    def __iter__(self):
        raise Untraceable(
            f"aux[{self._number}].shape: its length is not known yet; write .shape[0], .shape[-1]"
        )

    __len__ = __iter__


def _plain_index(what: str, i) -> int:
    try:
        return operator.index(i)
    except Untraceable:
        raise Untraceable(f"{what}[...]: a traced index; accepted: a plain number") from None


# --- captured tensors


class Recorder(TorchFunctionMode):
    """Finds the tensors that a function captures while it is traced; active by `with`.

    tensors    captured, in the order in which they are read first
    is_steady  the function reads them as they are. Otherwise it computes with tensors: the results are others at the
               next call, and a number that it reads from a tensor is a constant of this one
    """

    def __init__(self):
        super().__init__()
        self.tensors: list[torch.Tensor] = []
        self.is_steady = True
        self._made: list[torch.Tensor] = []  # from numbers alone, by the function

    def __enter__(self):
        self._outer, active.recorder = getattr(active, "recorder", None), self
        return super().__enter__()

    def __exit__(self, *error):
        active.recorder = self._outer
        return super().__exit__(*error)

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = [*args, *kwargs.values()]
        inside = [x for arg in given for x in (arg if isinstance(arg, (tuple, list)) else (arg,))]
        if any(isinstance(x, Symbol) for x in inside):
            if getattr(function, "__name__", "") == "__getitem__" and not isinstance(
                args[0], Symbol
            ):
                return self._element(*args)
            return torch_function(function, args, kwargs)
        result = function(*args, **kwargs)
        if not _is_of_metadata(function):
            self.is_steady = False
            tensors = [x for x in inside if isinstance(x, torch.Tensor)]
            if isinstance(result, torch.Tensor) and all(map(self._is_made, tensors)):
                self._made.append(result)
        return result

    def _is_made(self, tensor) -> bool:
        return any(tensor is made for made in self._made)

    def _element(self, tensor, index) -> Symbol:
        return element(self._number(tensor), (), index, _kind_of(tensor))

    def symbol(self, tensor):
        """A tensor beside a traced value: a scalar."""
        if tensor.dim():
            raise Untraceable(
                f"a {type(tensor).__name__} of shape {tuple(tensor.shape)} beside a traced value; accepted: its "
                "elements, one index for each dimension, and tensors without dimensions"
            )
        if self._is_made(tensor):
            return operand(tensor.item())
        return Symbol("read", (self._number(tensor), 0), _kind_of(tensor))

    def _number(self, tensor) -> int:
        for i, known in enumerate(self.tensors):
            if known is tensor:
                return CAPTURED + i
        self.tensors.append(tensor)
        return CAPTURED + len(self.tensors) - 1


def _kind_of(tensor: torch.Tensor) -> str:
    if tensor.dtype is torch.bool:
        return "bool"
    return "float" if tensor.is_floating_point() else "int"


def _is_of_metadata(function) -> bool:
    """Whether a function of torch reads what captures.py compares."""
    name = getattr(function, "__name__", "")
    if name == "__get__":
        return getattr(function.__self__, "__name__", "") in ("shape", "dtype", "device", "ndim")
    return name in ("dim", "size", "is_floating_point")
