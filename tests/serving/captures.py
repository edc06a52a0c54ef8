"""Functions of a mask that read the size of a window in every way that Python has, and change it there.

way(window) -> (function, change): after change(new) the same object hides other keys. All of them but DATA compute
the same operations, so that they share a kernel for each window.
"""

from __future__ import annotations

import functools
import types
from dataclasses import dataclass

import torch

WINDOW = None
CONFIG = types.SimpleNamespace(inner=types.SimpleNamespace(window=None))
MODULE = types.ModuleType("settings")


def shows(q_idx, kv_idx, window):
    """Both directions, so that few queries at the first keys have something to hide."""
    return (kv_idx - q_idx < window) & (q_idx - kv_idx < window)


def closure(window):
    def function(b, h, q_idx, kv_idx, aux):
        return shows(q_idx, kv_idx, window)

    def change(new):
        nonlocal window
        window = new

    return function, change


def default(window):
    def function(b, h, q_idx, kv_idx, aux, window=window):
        return shows(q_idx, kv_idx, window)

    return function, lambda new: setattr(function, "__defaults__", (new,))


def default_in_the_place_of_aux(window):
    def function(b, h, q_idx, kv_idx, window=window):
        return shows(q_idx, kv_idx, window)

    return function, lambda new: setattr(function, "__defaults__", (new,))


def keyword_default(window):
    def function(b, h, q_idx, kv_idx, aux, *, window=window):
        return shows(q_idx, kv_idx, window)

    return function, lambda new: function.__kwdefaults__.update(window=new)


def global_name(window):
    def function(b, h, q_idx, kv_idx):
        return shows(q_idx, kv_idx, WINDOW)

    def change(new):
        global WINDOW
        WINDOW = new

    change(window)
    return function, change


def called_function(window):
    """A global, read by a function that another one captures."""
    inner, change = global_name(window)
    return lambda *given: inner(*given[:4]), change


def attribute_chain(window):
    def function(b, h, q_idx, kv_idx, aux):
        return shows(q_idx, kv_idx, CONFIG.inner.window)

    def change(new):
        CONFIG.inner.window = new

    change(window)
    return function, change


def attribute_of_a_python_module(window):
    def function(b, h, q_idx, kv_idx, aux):
        return shows(q_idx, kv_idx, MODULE.window)

    def change(new):
        MODULE.window = new

    change(window)
    return function, change


class Layer(torch.nn.Module):
    """Of which every instance has the same repr."""

    def __init__(self, window):
        super().__init__()
        self.window = window

    def mask(self, b, h, q_idx, kv_idx, aux):
        return shows(q_idx, kv_idx, self.window)

    def forward(self, b, h, q_idx, kv_idx):
        return shows(q_idx, kv_idx, self.window)


def bound_method(window):
    layer = Layer(window)
    return layer.mask, lambda new: setattr(layer, "window", new)


def module(window):
    layer = Layer(window)
    return layer, lambda new: setattr(layer, "window", new)


def closure_over_a_module(window):
    layer = Layer(window)

    def function(b, h, q_idx, kv_idx, aux):
        return shows(q_idx, kv_idx, layer.window)

    return function, lambda new: setattr(layer, "window", new)


@dataclass
class Sizes:
    half: float

    @property
    def window(self):
        return int(2 * self.half)


def property_of_a_dataclass(window):
    sizes = Sizes(window / 2)

    def function(b, h, q_idx, kv_idx, aux):
        return shows(q_idx, kv_idx, sizes.window)

    return function, lambda new: setattr(sizes, "half", new / 2)


class OfTheClass:
    window = 0

    def __call__(self, b, h, q_idx, kv_idx, aux):
        return shows(q_idx, kv_idx, self.window)


def class_attribute(window):
    OfTheClass.window = window
    return OfTheClass(), lambda new: setattr(OfTheClass, "window", new)


def tensor_element(window):
    """Of a tensor whose repr leaves this element out."""
    tensor = torch.zeros(5000, dtype=torch.int64)
    tensor[2500] = window

    def function(b, h, q_idx, kv_idx, aux):
        return shows(q_idx, kv_idx, tensor[2500].item())

    return function, lambda new: tensor.__setitem__(2500, new)


def scalar_tensor(window):
    tensor = torch.tensor(window)

    def function(b, h, q_idx, kv_idx, aux):
        return shows(q_idx, kv_idx, tensor)

    return function, tensor.fill_


def attribute_of_a_tensor(window):
    """An attribute of Python, which no operation of torch shows."""
    tensor = torch.zeros(1)
    tensor.window = window

    def function(b, h, q_idx, kv_idx, aux):
        return shows(q_idx, kv_idx, tensor.window)

    return function, lambda new: setattr(tensor, "window", new)


class Windowed(torch.Tensor):
    window = 0


def attribute_of_a_tensor_class(window):
    Windowed.window = window
    tensor = torch.zeros(1).as_subclass(Windowed)

    def function(b, h, q_idx, kv_idx, aux):
        return shows(q_idx, kv_idx, tensor.window)

    return function, lambda new: setattr(Windowed, "window", new)


def list_element(window):
    sizes = [window]
    return lambda b, h, q_idx, kv_idx, aux: shows(q_idx, kv_idx, sizes[0]), (
        lambda new: sizes.__setitem__(0, new)
    )


def partial(window):
    def windowed(sizes, b, h, q_idx, kv_idx, aux):
        return shows(q_idx, kv_idx, sizes["window"])

    sizes = {"window": window}
    return functools.partial(windowed, sizes), lambda new: sizes.update(window=new)


def replaced_code(window):
    def function(b, h, q_idx, kv_idx, aux):
        return shows(q_idx, kv_idx, 1234)

    written = function.__code__

    def change(new):
        constants = tuple(new if c == 1234 else c for c in written.co_consts)
        function.__code__ = written.replace(co_consts=constants)

    change(window)
    return function, change


def counted(window):
    """A function that changes what it reads: the calls of it, of which tracing is one."""
    calls = 0

    def function(b, h, q_idx, kv_idx, aux):
        nonlocal calls
        calls += 1
        return shows(q_idx, kv_idx, window if calls == 1 else later)

    later = window

    def change(new):
        nonlocal later
        later = new

    return function, change


DATA = ("scalar_tensor",)  # a tensor's values are no part of the computation
WAYS = {
    way.__name__: way
    for way in (
        closure, default, default_in_the_place_of_aux, keyword_default, global_name, called_function, attribute_chain,
        attribute_of_a_python_module, bound_method, module, closure_over_a_module, property_of_a_dataclass,
        class_attribute, tensor_element, scalar_tensor, attribute_of_a_tensor,
        attribute_of_a_tensor_class, list_element, partial, replaced_code, counted,
    )
}  # fmt: skip
