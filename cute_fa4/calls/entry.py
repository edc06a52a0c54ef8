"""A public function is declared by its signature and docstring; its body, which gathers its arguments, is made here.

The body is written as source once, at import, as dataclasses write theirs: a repeated call has few microseconds, and
Dynamo of PyTorch 2.11 cannot trace locals(). For a function of few arguments it is

    if is_dynamo_compiling():
        return traced(function, {"q": q, "k": k, "v": v, "causal": causal, "return_lse": return_lse})
    return run(
        function,
        new(CallTensors, (q, k, v, None, None, ...)),
        (None, (None, causal, 0.0, ...), (None, 1, ..., return_lse)),
        (positional, others, return_lse),
        positional or others or return_lse is not False and return_lse is not True,
    )
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any, Protocol, TypeVar

from torch.compiler import is_dynamo_compiling

from cute_fa4.calls.request import Choices, Numbers
from cute_fa4.operands import CallTensors, argument_names

# Arguments that `asked` has, and that are looked at as they are given unless they are what they usually are.
TO_CHECK = (
    *("pack_gqa", "batch_invariant", "return_lse", "seqused_k_excludes_new", "four_over_six"),
    *("score_mod", "mask_mod", "block_sparse_tensors"),
)


class Entry(Protocol):
    """A function made by `entry`. rest: names of the arguments that its body passes on as `rest`."""

    __code__: CodeType
    rest: list[str]


Declared = TypeVar("Declared", bound=Callable)


def entry(run: Callable, traced: Callable, cached: bool = False) -> Callable[[Declared], Declared]:
    """Decorate a declaration.

    run     run(function, tensors, asked, rest, unusual): tensors and asked as repeat.attend takes them; rest are
            arguments that are in neither, and those that `asked` has not as they were given; unusual: these want a look
    traced  traced(function, arguments): by name
    cached  the names are those of flash_attn_with_kvcache
    """

    def decorate(declared: Declared) -> Declared:
        code = declared.__code__
        by_position, by_keyword = code.co_argcount, code.co_kwonlyargcount
        names = code.co_varnames[: by_position + by_keyword + 2]  # with *positional and **others
        *parameters, positional, others = names
        declaration = [f"{name}=None" for name in parameters]
        declaration.insert(by_position, f"*{positional}")
        tensors = (name if name in names else "None" for name in argument_names(cached))
        rest = _rest(names, cached)
        name = declared.__name__
        source = (
            "def make(run, traced, new, CallTensors, is_dynamo_compiling):\n"
            f"  def {name}({', '.join(declaration)}, **{others}):\n"
            "    if is_dynamo_compiling():\n"
            f"        return traced({name}, {_dict(names)})\n"
            f"    return run({name}, new(CallTensors, ({', '.join(tensors)})), {_asked(names)}, "
            f"({', '.join(rest)}), {_is_unusual(declared, rest)})\n"
            f"  return {name}\n"
        )
        made: dict[str, Any] = {}
        exec(compile(source, code.co_filename, "exec"), declared.__globals__, made)
        function = made["make"](run, traced, tuple.__new__, CallTensors, is_dynamo_compiling)
        function.__code__ = function.__code__.replace(co_firstlineno=code.co_firstlineno)
        function.rest = rest
        for each in (
            "__defaults__",
            "__kwdefaults__",
            "__annotations__",
            "__doc__",
            "__qualname__",
        ):
            setattr(function, each, getattr(declared, each))
        return function

    return decorate


def _asked(names: tuple[str, ...]) -> str:
    """window_size, Numbers and Choices: an argument, or the default of what the function does not have."""

    def items(group: type[Numbers] | type[Choices]) -> str:
        defaults = group._field_defaults
        return ", ".join(name if name in names else repr(defaults[name]) for name in group._fields)

    choices = items(Choices)
    if "return_softmax_lse" in names:
        choices = choices.replace("return_lse", "return_lse is True or return_softmax_lse is True")
    return f"(window_size, ({items(Numbers)}), ({choices}))"


def _rest(names: tuple[str, ...], cached: bool) -> list[str]:
    """Those of other packages first."""
    asked = {"window_size", *Numbers._fields, *Choices._fields} - {*TO_CHECK}
    others = names[-2:]
    return [*others, *(x for x in names[:-2] if x not in asked and x not in argument_names(cached))]


def _is_unusual(declared: Callable, rest: list[str]) -> str:
    """Whether one of these arguments has not the type of its default, or is one that only other packages have."""
    switches: dict[str, tuple] = {"bool": (False, True), "bool | None": (None, False, True)}
    defaults: dict[str, object] = declared.__kwdefaults__ or {}
    usual = (
        (name, switches.get(declared.__annotations__.get(name, ""), (defaults[name],)))
        for name in rest[2:]
    )
    tests = (" and ".join(f"{name} is not {value}" for value in values) for name, values in usual)
    return " or ".join((*rest[:2], *tests))


def _dict(names) -> str:
    return "{" + ", ".join(f"{name!r}: {name}" for name in names) + "}"


def named_rest(function: Entry, rest: tuple) -> dict:
    """Arguments that the body of an entry passes on as `rest`, by name."""
    return dict(zip(function.rest, rest, strict=True))


def arguments_of(
    function: Entry, tensors: CallTensors, asked: tuple, rest: tuple, cached: bool = False
) -> dict:
    """Every argument of an entry by name, from the parts that its body gathers."""
    window_size, numbers, choices = asked
    named = dict(zip(Numbers._fields, numbers, strict=True)) | {"window_size": window_size}
    named |= zip(Choices._fields, choices, strict=True)
    named |= zip(argument_names(cached), tensors, strict=True)
    named |= named_rest(function, rest)
    return {name: named[name] for name in function.__code__.co_varnames}
