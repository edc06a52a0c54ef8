"""Functions of a score that the kernel traces: what users may pass, and the ones that come with the package.

    score_mod(score, batch, head, q_idx, kv_idx, aux) -> score      after the softmax scale, before the mask
    mask_mod(batch, head, q_idx, kv_idx, aux) -> bool               whether the key is visible

score is a Float32, the indices are Int32: q_idx counts the queries of the sequence, kv_idx its keys; neither exceeds
its sequence. aux[i] is the i-th tensor of the call, in global memory; aux.position is the query's position in key
coordinates, q_idx + num_keys - seqlen_q, and aux.q_row its row in a packed tensor, or in a dense one
batch * seqlen_q + q_idx. A function need not take aux: FlexAttention's have five and four parameters.

The function is called once, with symbols instead of numbers (traced/). It uses operators, torch.where, torch.exp and
other functions of torch on numbers, or cute.math and cutlass.select_. It may read anything else, such as attributes of
a module or elements of a list; their values at the time of the call become part of the computation. The computation
is the key of the function and becomes the code of the kernel.
"""

import ast
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Real
from operator import index
from typing import Any

import torch

from cute_fa4.system import forks
from cute_fa4.system.messages import shown

from ..traced.captures import Mutable, Reads
from ..traced.trace import MASK, SCORE, Traced, name_of, takes, traced
from . import packaged
from .packaged import InKernel


@dataclass(frozen=True)
class Aux:
    """Inputs of a function other than the score and its indices."""

    tensors: tuple
    dtypes: tuple
    position: Any
    q_row: Any
    seqlen_q: Any
    num_keys: Any

    def __getitem__(self, i):
        return self.tensors[i]

    @staticmethod
    def of(cfg, args, sequence, row) -> "Aux":
        """For one row: `row.q_index` of `sequence`."""
        from cutlass import Int32

        packed = args.lengths.queries_are_packed
        q_row = sequence.q_first_row if packed else sequence.batch * args.seqlen_q
        return Aux(
            args.aux,
            tuple(dtype for dtype, _ in cfg.aux),
            Int32(sequence.position(row.q_index)),
            Int32(q_row + row.q_index),
            Int32(sequence.seqlen_q),
            Int32(sequence.num_keys),
        )


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

    def __post_init__(self):
        """Trace a caller's function; a key that came with it becomes its label, since it may be any text."""
        if not isinstance(self.function, (InKernel, InOrder, Traced)):
            mod = ScoreMod.of(self.function)
            for name in ("function", "check"):
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
    def of(function, kind: str | None = None) -> "ScoreMod | None":
        """A ScoreMod with the computation of a function; None stays None.

        kind: "score_mod" or "mask_mod"; None: the type of the return value decides. Raises TypeError for objects that
        cannot be called or traced, with what to write instead.
        """
        if function is None or isinstance(function, ScoreMod):
            return function
        if not callable(function):
            raise TypeError(
                f"{shown(function)} is no function; accepted: a function of its indices and aux, or None"
            )
        if torch.compiler.is_dynamo_compiling():
            torch._dynamo.graph_break(msg=_OUTSIDE_OF_GRAPHS)
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
            if (part.function.nodes if is_traced else part.function.by_score) is None:
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

# (id of code, kind) -> the code, and what its functions read and computed.
_by_code: dict[tuple, tuple[object, list[tuple[Reads, ScoreMod]]]] = {}
_remembered: dict[str, ScoreMod] = {}
_lock = forks.Lock()


def _known(function, kind: str | None) -> ScoreMod | None:
    """The earlier result for a plain function, if everything that it reads is immutable and unchanged."""
    if type(function) is _PLAIN:
        _, found = _by_code.get((id(function.__code__), kind), (None, ()))
        for reads, mod in found:
            if reads.hold_for(function):
                return mod
    return None


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
    computed = _traced_as_either(function) if kind is None else traced(function, kind)
    mod = of_traced(computed, name_of(function))
    if reads is not None and reads.hold_for(function):  # nothing changed meanwhile
        code = function.__code__
        with _lock.held:
            _, found = _by_code.setdefault((id(code), kind), (code, []))
            found.append((reads, mod))
            del found[:-_AT_MOST]
            while len(_by_code) > _AT_MOST:
                del _by_code[next(iter(_by_code))]
    return mod


def of_traced(computed: Traced, label: str = "") -> ScoreMod:
    """The function that computes this; label: the name in messages."""
    key = f"{computed.kind}:{computed.key}"
    mod = remembered(key)
    return remember(ScoreMod(computed, key, computed.check, label)) if mod is None else mod


_PLAIN = type(lambda: None)


def _traced_as_either(function) -> Traced:
    """Trace a function whose kind is not given: a score_mod returns a score, a mask_mod a comparison."""
    kinds = [
        kind
        for kind in (SCORE, MASK)
        if any(takes(function, kind, aux=aux) for aux in (True, False))
    ]
    errors = {}
    for kind in _likely_first(function, kinds or [SCORE]):
        try:
            return traced(function, kind)
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
        raise _refused("soft_cap", "cap", cap, is_number, "a finite number above 0")
    cap = float(cap)

    return ScoreMod(packaged.capped(cap), f"soft_cap({cap!r})")


def alibi(num_heads: int) -> ScoreMod:
    """score - slope(head) * |position - key|, the slopes of `alibi_slope`."""
    num_heads = _count("alibi", "num_heads", num_heads, "the query heads of the model, from 1 on")
    return ScoreMod(packaged.with_slopes_of_heads(num_heads), f"alibi({num_heads})")


def alibi_slope(head: int, num_heads: int) -> float:
    """2^(-8 (h+1) / H) for a power of two H; otherwise with F, the largest power of two below, for h < F, and
    2^(-8 (2 (h-F) + 1) / (2F)) for the rest.

    >>> alibi_slope(0, 8), alibi_slope(7, 8), alibi_slope(8, 12)
    (0.5, 0.00390625, 0.7071067811865476)
    """
    full = 1 << (num_heads.bit_length() - 1)
    if head < full:
        return 2.0 ** (-8 * (head + 1) / full)
    return 2.0 ** (-8 * (2 * (head - full) + 1) / (2 * full))


def additive_bias(heads: bool = True) -> ScoreMod:
    """score + aux[0][batch, head, q_idx, kv_idx], or without the head axis. A materialised mask, natural units.

    Keys and queries beyond the tensor's last two axes are hidden. Finite biases below LOWEST, such as torch.finfo.min,
    hide like -inf, except from a query that sees nothing above them: it gives them equal weights.
    """
    if not isinstance(heads, bool):
        accepted = "True, aux_tensors[0] has an axis of heads, or False"
        raise _refused("additive_bias", "heads", heads, False, accepted)
    axes = "(batch, heads, queries, keys)" if heads else "(batch, queries, keys)"

    def check(aux, batch, num_heads, query_rows):
        least = (batch, num_heads, 1, 1) if heads else (batch, 1, 1)
        _check_first_aux(f"additive_bias({heads})", aux, axes, least)

    return ScoreMod(packaged.with_bias(heads), f"additive_bias({heads})", check)


def relative_logits(extent: int) -> ScoreMod:
    """score + aux[0][query row, head, position - key] where 0 <= position - key < extent. Natural units.

    aux[0] is (total_q, heads, extent); dense batches count rows as batch * seqlen_q + q_idx.
    """
    extent = _count("relative_logits", "extent", extent, "a number of distances, from 1 on")

    def check(aux, batch, num_heads, query_rows):
        least = (query_rows, num_heads, extent)
        _check_first_aux(f"relative_logits({extent})", aux, "(query rows, heads, extent)", least)

    return ScoreMod(packaged.with_logits(extent), f"relative_logits({extent})", check)


def composed(first: ScoreMod | None, then: ScoreMod | None) -> ScoreMod | None:
    """`then` of `first`: a soft cap before a user's bias, say. None is the identity."""
    for name, mod in (("first", first), ("then", then)):
        if mod is not None and not isinstance(mod, ScoreMod):
            accepted = "None or a ScoreMod; wrap a function with ScoreMod.of"
            raise _refused("composed", name, mod, False, accepted)
    if first is None or then is None:
        return first or then

    checks = [mod.check for mod in (first, then) if mod.check is not None]

    def check(*sizes):
        for each in checks:
            each(*sizes)

    return ScoreMod(InOrder(first, then), f"{first.key}{THEN}{then.key}", check if checks else None)


def _count(function: str, name: str, value, accepted: str) -> int:
    """A number from 1 on as a Python int."""
    is_count = hasattr(value, "__index__") and not isinstance(value, bool)
    is_count = is_count and not hasattr(value, "data_ptr")  # a tensor; its number may be elsewhere
    if not is_count or index(value) < 1:
        raise _refused(function, name, value, is_count, accepted)
    return index(value)


def _refused(function: str, name: str, value, right_type: bool, accepted: str) -> Exception:
    text = f"score_mods.{function}: {name}: {shown(value)}; accepted: {accepted}"
    return ValueError(text) if right_type else TypeError(text)


def _check_first_aux(name: str, aux: tuple, axes: str, least: tuple):
    """aux[0] has these axes, each at least so long; otherwise the kernel would read outside it."""
    shape = tuple(aux[0].shape) if aux else None
    short = shape is None or len(shape) != len(least)
    if short or any(size < needed for size, needed in zip(shape, least, strict=True)):
        raise ValueError(
            f"aux_tensors: the first has shape {shape}; accepted: for {name} {axes}, at least {least}"
        )


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
