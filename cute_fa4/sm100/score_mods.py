"""Functions of a score that the kernel traces: what users may pass, and the ones that come with the package.

    score_mod(score, batch, head, q_idx, kv_idx, aux) -> score      after the softmax scale, before the mask
    mask_mod(batch, head, q_idx, kv_idx, aux) -> bool               whether the key is visible

score is Float32, the indices are Int32: q_idx counts the queries of the sequence, kv_idx its keys; none lies beyond
it. aux[i] is the i-th tensor of the call, in global memory; aux.position is the query's position in key coordinates,
q_idx + num_keys - seqlen_q, and aux.q_row its row in a packed tensor, or in a dense one batch * seqlen_q + q_idx. The
function is traced once for each column of a tile; it may use cute.math and plain arithmetic, and choose with
cutlass.select_.
"""

import ast
import hashlib
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Real
from operator import index
from typing import Any

from ..system.messages import shown

LOG2_E = 1.4426950408889634

# The kernel computes 2^(c s - c m), where c m, m the row maximum, is rounded to float32: for m = -2^24 off by at most
# 1. Far below, as for -3.4e38, the difference of equal numbers would be larger than any exponent, or infinite.
LOWEST = -(2.0**24)


@dataclass(frozen=True)
class Aux:
    """What a function may look at besides its indices."""

    tensors: tuple
    position: Any
    q_row: Any
    seqlen_q: Any
    num_keys: Any

    def __getitem__(self, i):
        return self.tensors[i]

    @staticmethod
    def of(args, sequence, row) -> "Aux":
        """For one row: `row.q_index` of `sequence`."""
        from cutlass import Int32

        packed = args.lengths.cu_seqlens_q is not None
        q_row = sequence.q_first_row if packed else sequence.batch * args.seqlen_q
        return Aux(
            args.aux,
            Int32(sequence.position(row.q_index)),
            Int32(q_row + row.q_index),
            Int32(sequence.seqlen_q),
            Int32(sequence.num_keys),
        )


@dataclass(frozen=True)
class ScoreMod:
    """A traced function with a name that stays the same between processes: its code is part of the key."""

    function: Callable = field(repr=False, compare=False)
    key: str = ""
    # (aux_tensors, number of sequences, query heads, query rows) -> None; ValueError for tensors that are too small.
    check: Callable | None = field(default=None, repr=False, compare=False)

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
    def of(function) -> "ScoreMod | None":
        """Wrap a user's function; None stays None. Raises TypeError for what cannot be called."""
        if function is None or isinstance(function, ScoreMod):
            return function
        if not callable(function):
            raise TypeError(
                f"{shown(function)} is no function; accepted: a function of its indices and aux, or None"
            )
        key = f"{function.__module__}.{function.__qualname__}:{_fingerprint(function)}"
        return remember(ScoreMod(function, key))

    @property
    def name(self) -> str:
        """What messages call it: the key without the hash of the code."""
        return self.key.partition(":")[0]

    def score(self, *given):
        """The function's score, while it is traced; TypeError for what is none."""
        score = self.function(*given)
        if _is_plain(score) and (isinstance(score, bool) or not isinstance(score, (int, float))):
            raise TypeError(
                f"score_mod: {self.name} returned {shown(score)}; accepted: a score, Float32 or a number"
                + _forgotten(score, "score")
            )
        return score

    def shows(self, *given):
        """Whether the function shows the key, while it is traced; TypeError for what says neither."""
        from cutlass import Boolean, Numeric

        visible = self.function(*given)
        if isinstance(visible, bool):
            return Boolean(visible)
        is_number = isinstance(visible, Numeric) and not isinstance(visible, Boolean)
        if is_number or _is_plain(visible):
            raise TypeError(
                f"mask_mod: {self.name} returned {type(visible).__name__ if is_number else shown(visible)}; accepted: "
                "a comparison, such as kv_idx <= q_idx or aux[0][batch, kv_idx] != 0, True or False"
                + _forgotten(visible, "condition")
            )
        return visible


def _is_plain(value) -> bool:
    """Python's own, not a value that the compiler traces."""
    return type(value).__module__ == "builtins"


def _forgotten(value, what: str) -> str:
    return f"; return the {what}: a function without return returns None" if value is None else ""


_remembered: dict[str, ScoreMod] = {}


def remember(mod: ScoreMod) -> ScoreMod:
    """Have `remembered` find the function by its key, as a traced graph does, which holds no functions."""
    _remembered[mod.key] = mod
    return mod


def remembered(key: str) -> ScoreMod | None:
    return _remembered.get(key)


def _fingerprint(function, inside: tuple = ()) -> str:
    """A hash of a function's code and of every value from outside: closures with other numbers are other kernels."""
    code = getattr(function, "__code__", None)
    if code is None or function in inside:
        return repr(function) if code is None else function.__qualname__

    def key_of(value):
        is_function = hasattr(value, "__code__") and hasattr(value, "__globals__")
        return _fingerprint(value, (*inside, function)) if is_function else repr(value)

    closed = [key_of(cell.cell_contents) for cell in function.__closure__ or ()]
    found = {name: key_of(function.__globals__.get(name)) for name in sorted(_names(code))}
    outside = (closed, found, function.__defaults__, function.__kwdefaults__)
    text = repr([_code_key(code), *outside])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _code_key(code) -> list:
    """What a code object does, without where its text stands: two lambdas of one line are two functions."""
    constants = [_code_key(c) if inspect.iscode(c) else repr(c) for c in code.co_consts]
    return [code.co_code.hex(), code.co_names, code.co_varnames, constants]


def _names(code) -> set:
    """Names that the code, or code inside it, may look up outside."""
    inner = (_names(c) for c in code.co_consts if inspect.iscode(c))
    return set(code.co_names).union(*inner)


def soft_cap(cap: float) -> ScoreMod:
    """cap * tanh(score / cap): scores stay within +-cap. cap > 0; a constant of the model, part of the compile key."""
    is_number = isinstance(cap, Real) and not isinstance(cap, bool)
    if not is_number or not 0 < cap < math.inf:
        raise _refused("soft_cap", "cap", cap, is_number, "a finite number above 0")
    cap = float(cap)

    def capped(score, batch, head, q_idx, kv_idx, aux):
        from cutlass import Float32

        # tanh(x) = 1 - 2 / (1 + e^2x): the hardware's own tanh is off by 2^-11, which a cap of 50 would make 0.02.
        from .instructions import exp2

        e = exp2.hardware(score * Float32(2 * LOG2_E / cap))
        return Float32(cap) - Float32(2 * cap) * _reciprocal(e + Float32(1.0))

    return ScoreMod(capped, f"soft_cap({cap!r})")


def alibi(num_heads: int) -> ScoreMod:
    """score - slope(head) * |position - key|, the slopes of `alibi_slope`."""
    num_heads = _count("alibi", "num_heads", num_heads, "the query heads of the model, from 1 on")
    full = 1 << (num_heads.bit_length() - 1)

    def biased(score, batch, head, q_idx, kv_idx, aux):
        import cutlass.cute as cute
        from cutlass import Float32, Int32, select_

        # -log2 of the slope is linear in the head, with another line for the heads beyond the power of two.
        first = Float32(8.0 / full) * (head + 1).to(Float32)
        rest = Float32(4.0 / full) * (2 * (head - full) + 1).to(Float32)
        slope = cute.math.exp2(-select_(head < full, first, rest), fastmath=True)
        distance = aux.position - kv_idx
        distance = Int32(select_(distance < 0, Int32(0) - distance, distance))
        return score - slope * distance.to(Float32)

    return ScoreMod(biased, f"alibi({num_heads})")


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
    hide like -inf, except from a query that sees nothing above them: that one weighs them all alike.
    """
    if not isinstance(heads, bool):
        accepted = "True, aux_tensors[0] has an axis of heads, or False"
        raise _refused("additive_bias", "heads", heads, False, accepted)

    def biased(score, batch, head, q_idx, kv_idx, aux):
        from cutlass import Float32, Int32, select_

        bias = aux[0]
        queries, keys = bias.shape[-2], bias.shape[-1]
        # `&` of two comparisons; an index of 0 where the tensor ends.
        inside = (q_idx < queries) & (kv_idx < keys)
        q_inside, kv_inside = select_(inside, q_idx, Int32(0)), select_(inside, kv_idx, Int32(0))
        at = (batch, head, q_inside, kv_inside) if heads else (batch, q_inside, kv_inside)
        value = select_(inside, bias[at].to(Float32), Float32(float("-inf")))
        far = (value < Float32(LOWEST)) & (value > Float32(float("-inf")))
        return select_(far, Float32(LOWEST), score + value)

    axes = "(batch, heads, queries, keys)" if heads else "(batch, queries, keys)"

    def check(aux, batch, num_heads, query_rows):
        least = (batch, num_heads, 1, 1) if heads else (batch, 1, 1)
        _check_first_aux(f"additive_bias({heads})", aux, axes, least)

    return ScoreMod(biased, f"additive_bias({heads})", check)


def relative_logits(extent: int) -> ScoreMod:
    """score + aux[0][query row, head, position - key] where 0 <= position - key < extent. Natural units.

    aux[0] is (total_q, heads, extent); dense batches count rows as batch * seqlen_q + q_idx.
    """
    extent = _count("relative_logits", "extent", extent, "a number of distances, from 1 on")

    def biased(score, batch, head, q_idx, kv_idx, aux):
        from cutlass import Float32, Int32, select_

        distance = aux.position - kv_idx
        near = (distance >= 0) & (distance < extent)
        bias = aux[0][aux.q_row, head, select_(near, distance, Int32(0))].to(Float32)
        return score + select_(near, bias, Float32(0.0))

    def check(aux, batch, num_heads, query_rows):
        least = (query_rows, num_heads, extent)
        _check_first_aux(f"relative_logits({extent})", aux, "(query rows, heads, extent)", least)

    return ScoreMod(biased, f"relative_logits({extent})", check)


def composed(first: ScoreMod | None, then: ScoreMod | None) -> ScoreMod | None:
    """`then` of `first`: a soft cap before a user's bias, say. None is the identity."""
    for name, mod in (("first", first), ("then", then)):
        if mod is not None and not isinstance(mod, ScoreMod):
            accepted = "None or a ScoreMod; wrap a function with ScoreMod.of"
            raise _refused("composed", name, mod, False, accepted)
    if first is None or then is None:
        return first or then

    def both(score, batch, head, q_idx, kv_idx, aux):
        inner = first.score(score, batch, head, q_idx, kv_idx, aux)
        return then.score(inner, batch, head, q_idx, kv_idx, aux)

    checks = [mod.check for mod in (first, then) if mod.check is not None]

    def check(*sizes):
        for each in checks:
            each(*sizes)

    return ScoreMod(both, f"{first.key}{THEN}{then.key}", check if checks else None)


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


def _reciprocal(x):
    import cutlass.cute as cute

    return cute.arch.rcp_approx(x)


PACKAGED = {make.__name__: make for make in (soft_cap, alibi, additive_bias, relative_logits)}
"""Functions that come with the package, by the name in their keys: a key is the call that made it, "soft_cap(50.0)"."""

THEN = " then "
"""Between the keys of composed functions."""


def packaged_call(key: str) -> tuple[str, object] | None:
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
