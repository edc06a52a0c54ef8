"""Functions of a score that the kernel traces: what users may pass, and the ones that come with the package.

    score_mod(score, batch, head, q_idx, kv_idx, aux) -> score      after the softmax scale, before the mask
    mask_mod(batch, head, q_idx, kv_idx, aux) -> bool               whether the key is visible

score is a Float32, the indices are Int32: q_idx counts the queries of the sequence, kv_idx its keys; neither exceeds
its sequence. aux[i] is the i-th tensor of the call, in global memory; aux.position is the query's position in key
coordinates, q_idx + num_keys - seqlen_q, and aux.q_row its row in a packed tensor, or in a dense one
batch * seqlen_q + q_idx. A function need not take aux: FlexAttention's have five and four parameters.

The function is called once, with symbols instead of numbers (traced/). It uses operators, torch.where, torch.exp and
other functions of torch on numbers, or cute.math and cutlass.select_. Tensors that it captures become aux tensors of
the call (captured.py). It may read anything else, such as attributes of a module or elements of a list; their values
at the time of the call become part of the computation. The computation is the key of the function and becomes the
code of the kernel.
"""

import ast
import math
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Real
from typing import Any

import torch

from cute_fa4.system import forks
from cute_fa4.system.messages import shown

from ..traced.captures import Mutable, Reads
from ..traced.expressions import CAPTURED
from ..traced.read_tensors import Recorder
from ..traced.trace import MASK, SCORE, Element, Traced, name_of, takes, traced
from . import packaged
from .packaged import InKernel


@dataclass(frozen=True, eq=False)
class InOrder:
    """`then` of `first`."""

    first: "ScoreMod"
    then: "ScoreMod"

    def __call__(self, score, *where):
        return self.then.score(self.first.score(score, *where), *where)

    def slope(self, score, value, where: tuple):
        between = self.first.score(score, *where)
        return self.first.slope(score, between, where) * self.then.slope(between, value, where)

    def slopes(self, score, value, where: tuple) -> list:
        between = self.first.score(score, *where)
        further = self.then.slope(between, value, where)
        of_first = [slope * further for slope in self.first.slopes(score, between, where)]
        return of_first + self.then.slopes(between, value, where)


@dataclass(frozen=True)
class ScoreMod:
    """A function of a score, or of indices, with a key that says what it computes: equal keys, equal kernels.

    ScoreMod.of(function) makes one. It is what the function computes at that moment: what the function reads may change
    afterwards and does not change the ScoreMod.
    """

    function: Callable = field(repr=False, compare=False)
    key: str = ""
    # (aux_tensors, number of sequences, query heads, query rows) -> None; ValueError for tensors that do not fit.
    check: Callable | None = field(default=None, repr=False, compare=False)
    # The name used in messages.
    label: str = field(default="", repr=False, compare=False)
    # (tensor, the function that captures it): aux tensors of a call, once it has joined them (captured.py).
    captured: tuple = field(default=(), repr=False, compare=False)

    def __post_init__(self):
        """Trace a caller's function; a key that came with it becomes its label, since it may be any text."""
        if not isinstance(self.function, (InKernel, InOrder, Traced)):
            mod = ScoreMod.of(self.function)
            for name in ("function", "check", "captured"):
                object.__setattr__(self, name, getattr(mod, name))
            object.__setattr__(self, "label", self.key)
            object.__setattr__(self, "key", mod.key)

    def __repr__(self) -> str:
        """Functions of the package as the call that makes them.

        >>> composed(composed(soft_cap(30.0), alibi(8)), additive_bias(True))
        composed(composed(soft_cap(30.0), alibi(8)), additive_bias(True))
        """
        first, *others = self.key.split(THEN)
        if any(packaged_call(key) is None for key in (first, *others)):
            return f"<score function {self.key}>"
        for then in others:
            first = f"composed({first}, {then})"
        return first

    @staticmethod
    def of(function, kind: str | None = None, *, backward=None) -> "ScoreMod | None":
        """A ScoreMod with the computation of a function; None stays None.

        kind: "score_mod" or "mask_mod"; None: the type of the return value decides.
        backward: backward(grad, score, batch, head, q_idx, kv_idx, aux) -> the gradient of the score before the
        function, of a score_mod; grad is that of the score after it, and the result is proportional to it. None: the
        derivative, from the computation. Gradients of aux tensors are derived in both cases.

        Raises TypeError for objects that cannot be called or traced, with what to write instead.
        """
        if backward is not None:
            _check_override(function, kind, backward)
        if function is None or isinstance(function, ScoreMod):
            return function
        if not callable(function):
            raise TypeError(
                f"{shown(function)} is not a function; accepted: a function of its indices and aux, or None"
            )
        if torch.compiler.is_dynamo_compiling():
            torch._dynamo.graph_break(msg=_OUTSIDE_OF_GRAPHS)
        if backward is not None:
            return _undisturbed(_with_backward)(function, backward)
        known = _known(function, kind)
        return known if known is not None else _undisturbed(_learnt)(function, kind)

    @property
    def name(self) -> str:
        """The name used in messages."""
        return self.label or self.key

    @property
    def kind(self) -> str | None:
        """The role that it may have: "score_mod" or "mask_mod"; None: either."""
        return self.function.kind if isinstance(self.function, Traced) else None

    @property
    def parts(self) -> tuple["ScoreMod", ...]:
        """The functions that it is composed of, in order."""
        if isinstance(self.function, InOrder):
            return self.function.first.parts + self.function.then.parts
        return (self,)

    def score(self, *given):
        """The function's score, while a kernel is built."""
        from cutlass import Boolean, Float32

        score = self.function(*given)
        if isinstance(score, (bool, Boolean)):
            raise TypeError(
                f"score_mod: {self.name} returned a comparison; accepted: a score, Float32 or a number"
            )
        return Float32(score)

    @property
    def without_slope(self) -> str | None:
        """The name of a part that has no derivative, or None."""
        for part in self.parts:
            is_traced = isinstance(part.function, Traced)
            if not part.function.has_slope if is_traced else part.function.by_score is None:
                return part.name
        return None

    def slope(self, score, value, where: tuple):
        """The derivative by the score at `score`, where the function has `value`, in a kernel that is built."""
        from cutlass import Float32

        if isinstance(self.function, InOrder):
            return self.function.slope(score, value, where)
        if isinstance(self.function, Traced):
            slope = self.function.slope(score, *where)
            return slope if isinstance(slope, float) else Float32(slope)
        by_score = self.function.by_score
        return by_score(value) if callable(by_score) else by_score

    @cached_property
    def elements(self) -> tuple[Element, ...]:
        """The elements of aux tensors that the value depends on, of all parts in order; `without_slope` is None."""
        if isinstance(self.function, InOrder):
            return self.function.first.elements + self.function.then.elements
        if isinstance(self.function, Traced):
            return self.function.elements
        plain = self.function.plain
        return () if plain is None else traced(plain, SCORE).elements

    def slopes(self, score, value, where: tuple) -> list:
        """The derivatives by `elements`, in a kernel that is built: Float32 or float."""
        if isinstance(self.function, InOrder):
            return self.function.slopes(score, value, where)
        from cutlass import Float32

        slopes = (element.slope(score, *where) for element in self.elements)
        return [slope if isinstance(slope, float) else Float32(slope) for slope in slopes]

    def shows(self, *given):
        """Whether the function shows the key, while a kernel is built."""
        from cutlass import Boolean

        visible = self.function(*given)
        if not isinstance(visible, (bool, Boolean)):
            raise TypeError(
                f"mask_mod: {self.name} returned {type(visible).__name__}; accepted: a comparison, such as "
                "kv_idx <= q_idx or aux[0][batch, kv_idx] != 0, True or False"
            )
        return Boolean(visible) if isinstance(visible, bool) else visible


# --- functions of the caller

_AT_MOST = 256
"""Code objects whose functions are remembered, and different values that the functions of one code object read."""

# (id of code, kind) -> the code, and what its functions read, computed and captured, of which it holds no tensor.
_by_code: dict[tuple, tuple[object, list[tuple[Reads, ScoreMod, tuple]]]] = {}
_remembered: dict[str, ScoreMod] = {}
_lock = forks.Lock()


def _known(function, kind: str | None) -> ScoreMod | None:
    """The earlier result for a plain function, if everything that it reads is immutable and unchanged."""
    if type(function) is _PLAIN:
        _, found = _by_code.get((id(function.__code__), kind), (None, ()))
        for reads, mod, captured in found:
            if reads.hold_for(function):
                return _with_captured(mod, [tensor() for tensor in captured], function)
    return None


def _with_captured(mod: ScoreMod, tensors: list, function) -> ScoreMod:
    return replace(mod, captured=tuple((x, function) for x in tensors)) if tensors else mod


_OUTSIDE_OF_GRAPHS = (
    "cute_fa4.score_mods.ScoreMod.of reads what a function captures, which a graph does not watch; accepted in a "
    "graph: functions of cute_fa4.score_mods, and what ScoreMod.of(function) returned outside of it"
)


def _undisturbed(call: Callable) -> Callable:
    """Not to be compiled by torch.compile, which would also look into frames that run between two graphs."""
    if "torch._dynamo" not in sys.modules:  # importing it takes a second
        return call
    if call not in _without_dynamo:
        _without_dynamo[call] = torch.compiler.disable(call)
    return _without_dynamo[call]


_without_dynamo: dict[Callable, Callable] = {}


def _learnt(function, kind: str | None) -> ScoreMod:
    """Trace, and remember what may be remembered."""
    reads = None
    if type(function) is _PLAIN:
        try:
            reads = Reads(function)
        except Mutable:
            pass
    computed, recorder = _traced_as(kind, function) if kind else _traced_as_either(function)
    mod, captured = of_traced(computed, name_of(function)), recorder.tensors
    # Nothing changed meanwhile, and what it captures is all that it knows of tensors.
    steady = reads is not None and reads.hold_for(function)
    if steady and (not reads.reads_tensors or recorder.is_steady and computed.nodes is not None):
        code = function.__code__
        with _lock.held:
            _, found = _by_code.setdefault((id(code), kind), (code, []))
            found[:] = [each for each in found if all(tensor() is not None for tensor in each[2])]
            found.append((reads, mod, tuple(map(weakref.ref, captured))))
            del found[:-_AT_MOST]
            while len(_by_code) > _AT_MOST:
                del _by_code[next(iter(_by_code))]
    return _with_captured(mod, captured, function)


def _check_override(function, kind: str | None, backward) -> None:
    if not callable(backward):
        raise TypeError(
            f"backward: {shown(backward)} is not a function; accepted: None, or one of grad and a score_mod's arguments"
        )
    if function is None or isinstance(function, ScoreMod) or kind == MASK:
        raise TypeError(
            f"backward: {name_of(backward)}, for {shown(function)}; accepted: for a function that is a score_mod"
        )


def _with_backward(function, backward) -> ScoreMod:
    computed, recorder = _traced_as(SCORE, function)
    mod = of_traced(computed.with_factor(backward, recorder), name_of(function))
    return _with_captured(mod, recorder.tensors, function)


def of_traced(computed: Traced, label: str = "") -> ScoreMod:
    """The function that computes this; label: the name in messages."""
    key = f"{computed.kind}:{computed.key}"
    mod = remembered(key)
    return remember(ScoreMod(computed, key, computed.check, label)) if mod is None else mod


_PLAIN = type(lambda: None)


def _traced_as(kind: str, function) -> tuple[Traced, Recorder]:
    recorder = Recorder()
    return traced(function, kind, recorder), recorder


def _traced_as_either(function) -> tuple[Traced, Recorder]:
    """Trace a function whose kind is not given: a score_mod returns a score, a mask_mod a comparison."""
    kinds = [
        kind
        for kind in (SCORE, MASK)
        if any(takes(function, kind, aux=aux) for aux in (True, False))
    ]
    errors = {}
    for kind in _likely_first(function, kinds or [SCORE]):
        try:
            return _traced_as(kind, function)
        except TypeError as error:
            errors[kind] = error
    raise next(iter(errors.values()))


def _likely_first(function, kinds: list) -> list:
    """The kinds, the likelier first: a mask_mod of five parameters ends with aux."""
    names = getattr(getattr(function, "__code__", None), "co_varnames", ())
    is_mask = len(names) > 4 and names[4].startswith("aux")
    return kinds[::-1] if is_mask else kinds


def remember(mod: ScoreMod) -> ScoreMod:
    """Have `remembered` find the function by its key, as a traced graph does, which holds no functions."""
    return _remembered.setdefault(mod.key, mod)


def remembered(key: str) -> ScoreMod | None:
    return _remembered.get(key)


def soft_cap(cap: float) -> ScoreMod:
    """cap * tanh(score / cap): scores stay within +-cap. cap > 0; a constant of the model, part of the compile key."""
    is_number = isinstance(cap, Real) and not isinstance(cap, bool)
    if not is_number or not 0 < cap < math.inf:
        raise packaged.refused("soft_cap", "cap", cap, is_number, "a finite number above 0")
    cap = float(cap)

    return ScoreMod(packaged.capped(cap), f"soft_cap({cap!r})")


def alibi(num_heads: int) -> ScoreMod:
    """score - slope(head) * |position - key|, the slopes of `alibi_slope`."""
    num_heads = packaged.counted(
        "alibi", "num_heads", num_heads, "the query heads of the model, at least 1"
    )
    return ScoreMod(packaged.with_slopes_of_heads(num_heads), f"alibi({num_heads})")


def additive_bias(heads: bool = True) -> ScoreMod:
    """score + aux[0][batch, head, q_idx, kv_idx], or without the head axis. A materialised mask, natural units.

    Keys and queries beyond the tensor's last two axes are hidden. Finite biases below LOWEST, such as torch.finfo.min,
    hide like -inf, except from a query that sees nothing above them: it gives them equal weights.
    """
    if not isinstance(heads, bool):
        accepted = "True, aux_tensors[0] has an axis of heads, or False"
        raise packaged.refused("additive_bias", "heads", heads, False, accepted)
    axes = "(batch, heads, queries, keys)" if heads else "(batch, queries, keys)"

    def check(aux, batch, num_heads, query_rows):
        least = (batch, num_heads, 1, 1) if heads else (batch, 1, 1)
        packaged.check_first_aux(f"additive_bias({heads})", aux, axes, least)

    return ScoreMod(packaged.with_bias(heads), f"additive_bias({heads})", check)


def relative_logits(extent: int) -> ScoreMod:
    """score + aux[0][query row, head, position - key] where 0 <= position - key < extent. Natural units.

    aux[0] is (total_q, heads, extent); dense batches count rows as batch * seqlen_q + q_idx.
    """
    extent = packaged.counted(
        "relative_logits", "extent", extent, "a number of distances, at least 1"
    )

    def check(aux, batch, num_heads, query_rows):
        least = (query_rows, num_heads, extent)
        packaged.check_first_aux(
            f"relative_logits({extent})", aux, "(query rows, heads, extent)", least
        )

    return ScoreMod(packaged.with_logits(extent), f"relative_logits({extent})", check)


def composed(first: ScoreMod | None, then: ScoreMod | None) -> ScoreMod | None:
    """`then` of `first`: a soft cap before a user's bias, say. None is the identity."""
    for name, mod in (("first", first), ("then", then)):
        if mod is not None and not isinstance(mod, ScoreMod):
            accepted = "None or a ScoreMod; wrap a function with ScoreMod.of"
            raise packaged.refused("composed", name, mod, False, accepted)
    if first is None or then is None:
        return first or then

    checks = [mod.check for mod in (first, then) if mod.check is not None]

    def check(*sizes):
        for each in checks:
            each(*sizes)

    captured, after = first.captured + then.captured, len(first.captured)
    first = renumbered(first, lambda number: number)
    then = renumbered(then, lambda number: number + after * (number >= CAPTURED))
    key = f"{first.key}{THEN}{then.key}"
    return ScoreMod(InOrder(first, then), key, check if checks else None, captured=captured)


def renumbered(mod: ScoreMod, number_of: Callable[[int], int]) -> ScoreMod:
    """The same with other numbers of the tensors that it reads, and without those that it captures."""
    if isinstance(mod.function, InOrder):
        parts = (renumbered(part, number_of) for part in (mod.function.first, mod.function.then))
        return composed(*parts)
    reads = mod.function.reads if isinstance(mod.function, Traced) else ()
    if all(number_of(number) == number for number, _ in reads):
        return replace(mod, captured=()) if mod.captured else mod
    if mod.function.nodes is None:
        raise TypeError(
            f"{mod.name}: reads aux[-1] or another from the end in a function of cutlass, beside captured tensors; "
            "accepted: aux[0], aux[1], ..."
        )
    return of_traced(mod.function.renumbered(number_of), mod.label)


PACKAGED = {make.__name__: make for make in (soft_cap, alibi, additive_bias, relative_logits)}
"""Functions that come with the package, by the name in their keys: a key is the call that made it, "soft_cap(50.0)"."""

THEN = " then "
"""Between the keys of composed functions."""


def packaged_call(key: str) -> tuple[str, Any] | None:
    """The name and argument of a packaged function's key; None for any other key.

    >>> packaged_call("soft_cap(50.0)"), packaged_call("my_function:1234")
    (('soft_cap', 50.0), None)
    """
    name, parenthesis, argument = key.partition("(")
    if name not in PACKAGED or not parenthesis:
        return None
    try:
        return name, ast.literal_eval(argument.removesuffix(")"))
    except (ValueError, SyntaxError):
        return None
