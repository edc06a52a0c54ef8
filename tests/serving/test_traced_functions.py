"""The values of traced functions in a kernel, compared with the same function of float64 tensors."""

from __future__ import annotations

import functools
import math
import operator
import warnings
from random import Random

import cutlass
import numpy as np
import pytest
import torch
from cutlass import Float32, Int32, cute, select_

from cute_fa4 import EmulatorWarning, flash_attn_func
from cute_fa4.reference import FLOAT32_NOISE
from cute_fa4.sm100.blueprint import score_mods
from cute_fa4.sm100.blueprint.score_mods import ScoreMod
from cute_fa4.sm100.traced import trace
from tests.serving import captures
from tests.suite import turns

# Few queries, for which kernels compile fastest; two heads, so that the head counts; differences of both signs.
QUERIES, KEYS, HEADS = 12, 50, 2


def problem(seed=0, queries=QUERIES):
    generator = torch.Generator().manual_seed(seed)
    sizes = (queries, HEADS), (KEYS, HEADS), (KEYS, HEADS)
    return [torch.randn(1, *size, 64, generator=generator).bfloat16() for size in sizes]


def in_float64(function, *given):
    """The result of a function of tensors; torch would divide integers in float32."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return function(*given)
    finally:
        torch.set_default_dtype(default)


def called_with_tensors(q, k, v, *, score_mod=None, mask_mod=None, aux_tensors=()):
    """Attention with the functions called once with all scores in float64 and tensors of indices."""
    q, k, v = (x[0].double().transpose(0, 1) for x in (q, k, v))
    scores = q @ k.mT / 8
    heads, rows, keys = (torch.arange(n) for n in scores.shape)
    where = torch.tensor(0), heads[:, None, None], rows[:, None], keys
    aux = [x.double() if x.is_floating_point() else x for x in aux_tensors]
    if score_mod is not None:
        scores = in_float64(score_mod, scores, *where, *[aux] * bool(aux)) + torch.zeros_like(
            scores
        )
    if mask_mod is not None:
        seen = mask_mod(*where, *[aux] * bool(aux))
        scores = scores.masked_fill(~torch.as_tensor(seen).expand(scores.shape), -torch.inf)
    lse = scores.logsumexp(-1)
    out = torch.exp(scores - lse[..., None].nan_to_num(neginf=0.0)) @ v
    return out.transpose(0, 1)[None], lse[None]


def attention(q, k, v, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EmulatorWarning)
        return flash_attn_func(q, k, v, return_lse=True, **options)


def assert_same(q, k, v, error=2e-5, **options):
    """error: of a score, in units of the scores"""
    out, lse = attention(q, k, v, **options)
    expected, expected_lse = called_with_tensors(q, k, v, **options)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=FLOAT32_NOISE, atol=error)
    # out is rounded to bf16, and so is P: 2^-8 of the largest value
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=2**-7 * v.abs().max().item())


def of_integers(score, batch, head, q_idx, kv_idx):
    """Division, remainders and shifts of both signs; conditions as numbers."""
    d = q_idx - kv_idx
    rounded = (
        d // 3
        + d % 3 * 5
        + (-d) // 4
        - (d % -7)
        + (d >> 1)
        - ((head + 1) << 2)
        + (d & 6)
        - (d ^ 5)
        + (d | 8)
    )
    clipped = (
        torch.clamp(d, -4, 9) + torch.maximum(d, head) - torch.minimum(d, -head) + abs(d) - (-d)
    )
    said = (
        (d < 3) * 2
        + (d >= 0.5)
        - (d == 1) * head
        + torch.where((d != 2) & ~(d > 5) | (head == 1), d, 7)
        + torch.where(torch.where(d > 3, d < 6, head == 0) ^ ((d < 0) == (head == 1)), 3, -d)
    )
    return score + 0.01 * (rounded + clipped + said) + d / 7 + (d * d) / (head + 3)


def of_floats(score, batch, head, q_idx, kv_idx):
    x = score / 4
    y = abs(x) + 0.25
    bounded = (
        torch.tanh(x)
        + torch.sigmoid(x)
        + x**3 / 8
        - torch.clamp(x, max=0.5)
        + torch.maximum(x, -y / 3)
    )
    growing = (
        torch.exp(x) / 8
        + torch.exp2(-x) / 8
        + torch.log(y)
        + torch.log2(y)
        + torch.sqrt(y)
        + torch.rsqrt(y)
    )
    other = (
        y**0.5
        - 1.0 / y
        + torch.where(x < 0, -x, 0.5 * x)
        + (q_idx - kv_idx).float() * 0.125
        + (x > 0.1).float()
    )
    return bounded + growing + other + torch.square(x).to(torch.float32)


def of_tensors(score, batch, head, q_idx, kv_idx, aux):
    """Every dtype, more than one rank, an index that is read, a size."""
    flags, small, table, wide, half, brain, full = (aux[i] for i in range(7))
    of_key = (
        small[kv_idx] * 2.5 + table[kv_idx // 2, head] * 0.5 + wide[kv_idx] / 64 + half[head, q_idx]
    )
    there = (
        torch.where(flags[batch, kv_idx], 1.0, -1.0)
        + brain[table[kv_idx // 2, head]] * flags[batch, q_idx]
    )
    return score + of_key / 8 + there + full[batch, head, q_idx, kv_idx] + aux[2].shape[-1]


def aux_of_every_dtype():
    generator = torch.Generator().manual_seed(1)

    def normal(*size):
        return torch.randn(*size, generator=generator)

    def integers(*size):
        return torch.randint(0, 5, size, generator=generator)

    return [
        normal(1, KEYS) > 0, integers(KEYS).byte(), integers(KEYS // 2, HEADS).int(), integers(KEYS),
        normal(HEADS, QUERIES).half(), normal(5).bfloat16(), normal(1, HEADS, QUERIES, KEYS),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "score_mod, aux",
    [(of_integers, None), (of_floats, None), (of_tensors, aux_of_every_dtype)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_operations_mean_what_they_mean_in_torch(score_mod, aux):
    """In the kernel, and in the evaluation of its nodes in float64."""
    options = {} if aux is None else {"aux_tensors": aux()}
    assert_same(*problem(), score_mod=score_mod, **options)
    score = torch.randn(HEADS, QUERIES, KEYS, dtype=torch.float64)
    at = (
        torch.tensor(0),
        torch.arange(HEADS)[:, None, None],
        torch.arange(QUERIES)[:, None],
        torch.arange(KEYS),
    )
    aux = options.get("aux_tensors", [])
    found = ScoreMod.of(score_mod).function.on_tensors(score, *at, aux=aux)
    doubles = [[x.double() if x.is_floating_point() else x for x in aux]] * bool(aux)
    assert (found - in_float64(score_mod, score, *at, *doubles)).abs().max() < 1e-9


@cute.jit
def doubled_beyond(x: Float32, key: Int32):
    y = x
    if key > 20:
        y = x * 2.0
    return y


def of_the_compiler(score, batch, head, q_idx, kv_idx, aux):
    """A branch, elements of which only a sum or a comparison is converted, a size, a function of cutlass."""
    shifted = doubled_beyond(score, kv_idx) + (aux[0][kv_idx] * 2).to(Float32)
    late = select_(aux[1][kv_idx] > q_idx % 5, shifted, Float32(0.25))
    smooth = cute.math.exp2(-cute.math.abs(score), fastmath=True)
    return Float32(select_(kv_idx < aux[0].shape[-1] - 3, late, score)) + smooth


def test_a_function_of_the_compiler_is_staged_once():
    generator = torch.Generator().manual_seed(2)
    weights, numbers = torch.randn(KEYS, generator=generator).half(), torch.arange(KEYS) % 7

    def the_same(score, batch, head, q_idx, kv_idx, aux):
        shifted = torch.where(kv_idx > 20, 2 * score, score) + aux[0][kv_idx] * 2
        late = torch.where(aux[1][kv_idx] > q_idx % 5, shifted, 0.25)
        return torch.where(kv_idx < KEYS - 3, late, score) + torch.exp2(-abs(score))

    x, given = problem(), {"aux_tensors": [weights, numbers]}
    out, lse = attention(*x, score_mod=of_the_compiler, **given)
    expected, expected_lse = called_with_tensors(*x, score_mod=the_same, **given)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=FLOAT32_NOISE, atol=2e-5)
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=2**-6)
    assert ScoreMod.of(of_the_compiler).function.text is not None


# --- captures: what a function reads elsewhere decides its kernel, whatever way it is read


@pytest.mark.parametrize("way", captures.WAYS)
def test_a_change_of_what_is_captured_changes_the_result(way):
    """All ways compute the same operations: two windows, two kernels for all of them."""
    x = problem()
    function, change = captures.WAYS[way](3)
    for window in (3, 9):
        change(window)
        shown = functools.partial(captures.shows, window=window)
        expected, expected_lse = called_with_tensors(
            *x, mask_mod=lambda b, h, i, j, f=shown: f(i, j)
        )
        for _ in range(2):  # the second call may be recognised
            out, lse = attention(*x, mask_mod=function)
            torch.testing.assert_close(lse.double(), expected_lse, rtol=FLOAT32_NOISE, atol=2e-5)
            torch.testing.assert_close(out.double(), expected, rtol=0, atol=2**-6)


@pytest.mark.parametrize("way", turns.by_turns([way for way in captures.WAYS if way != "counted"]))
def test_a_change_of_what_is_captured_changes_a_compiled_call(way):
    """The call is traced again, or its graph reads the value. A function that counts its calls is called more often."""
    torch.compiler.reset()
    x = problem()
    function, change = captures.WAYS[way](3)
    compiled = torch.compile(lambda *x: attention(*x, mask_mod=function), backend="eager")
    for window in (3, 9):
        change(window)
        for a, b in zip(compiled(*x), attention(*x, mask_mod=function), strict=True):
            assert a.equal(b)


@pytest.mark.parametrize("way", captures.WAYS)
def test_what_a_score_mod_computes_is_fixed_when_it_is_made(way):
    function, change = captures.WAYS[way](3)
    first = ScoreMod.of(function)
    assert ScoreMod.of(function) == first
    change(9)
    second = ScoreMod.of(function)
    if way in captures.DATA:
        assert first == second
        return
    assert first != second and hash(first) != hash(second)
    change(3)
    assert ScoreMod.of(function) == first == ScoreMod.of(captures.WAYS["closure"](3)[0])


def test_functions_of_immutable_values_are_traced_once(monkeypatch):
    """A closure, a default and a global that are numbers: read again at each call, and not traced again."""
    traces = []
    monkeypatch.setattr(
        score_mods, "traced", lambda *given: traces.append(given) or trace.traced(*given)
    )
    for way in ("closure", "default", "keyword_default", "global_name"):
        function, change = captures.WAYS[way](3)
        change(4)  # what other tests have not had traced
        change(5)
        mod, before = ScoreMod.of(function, "mask_mod"), len(traces)
        assert ScoreMod.of(function, "mask_mod") is mod and len(traces) == before
        other, _ = captures.WAYS[way](5)
        assert ScoreMod.of(other, "mask_mod") is mod and len(traces) == before


# --- what is traced is what the function computes: drawn functions, evaluated node by node

BINARY = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "and": operator.and_, "or": operator.or_,
    "xor": operator.xor, "floordiv": operator.floordiv, "mod": operator.mod, "minimum": torch.minimum,
    "maximum": torch.maximum, **{name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")},
}  # fmt: skip
OF_INTEGERS = ("add", "sub", "mul", "and", "or", "xor", "floordiv", "mod", "minimum", "maximum")


def drawn(random, depth):
    """A function of four integers that captures numbers, by as many operations as a tree of this depth has."""
    if depth == 0:
        place = random.randrange(4)
        return lambda *x: x[place]
    left, name, number = (
        drawn(random, depth - 1),
        random.choice(OF_INTEGERS),
        random.choice([-3, 2, 5]),
    )
    if random.random() < 0.4 and name not in ("minimum", "maximum"):
        return lambda *x: BINARY[name](left(*x), number)
    right, compare = drawn(random, depth - 1), random.choice(["lt", "le", "eq", "ne"])
    if random.random() < 0.3:
        return lambda *x: torch.where(
            BINARY[compare](left(*x), right(*x)), left(*x), right(*x) + number
        )
    if name in ("floordiv", "mod"):
        return lambda *x: BINARY[name](left(*x), number)
    return lambda *x: BINARY[name](left(*x), right(*x))


def test_drawn_functions_have_a_key_of_their_own():
    """Equal keys, equal values; the nodes compute what the function does."""
    random = Random(0)
    grid = torch.meshgrid(*[torch.arange(n) for n in (2, 2, 5, 6)], indexing="ij")
    values = {}
    for _ in range(400):
        inner, threshold = drawn(random, random.randint(0, 3)), random.randint(-2, 6)

        def function(b, h, q_idx, kv_idx, inner=inner, threshold=threshold):
            return inner(b, h, q_idx, kv_idx) < threshold

        mod, expected = ScoreMod.of(function, "mask_mod"), function(*grid)
        assert (mod.function.on_tensors(*grid) == expected).all()
        assert (values.setdefault(mod.key, expected) == expected).all()
    assert 200 < len(values) < 400  # some are drawn twice


# --- what cannot be traced is refused, with what to write instead


def never(*given):  # pragma: no cover
    raise AssertionError(given)


REFUSED = {
    "if": (dict(score_mod=lambda s, b, h, i, j: s if i > j else -s), r"if, and, .*torch\.where"),
    "and": (dict(mask_mod=lambda b, h, i, j: i >= j and i - j < 5), "between comparisons"),
    "chained": (dict(mask_mod=lambda b, h, i, j: 0 <= i - j < 5), "chained comparisons"),
    "min": (dict(score_mod=lambda s, b, h, i, j: min(s, 3.0)), r"torch\.minimum"),
    "not": (dict(mask_mod=lambda b, h, i, j: not i >= j), "~"),
    "float()": (dict(score_mod=lambda s, b, h, i, j: s + float(i)), r"\.to\(torch\.float32\)"),
    "math": (dict(score_mod=lambda s, b, h, i, j: math.exp(s)), r"torch\.exp"),
    "a table of numpy": (dict(score_mod=lambda s, b, h, i, j: s + np.arange(4.0)[h]), r"no index .*aux_tensors"),
    "a function of numpy": (dict(score_mod=lambda s, b, h, i, j: np.where(i > j, s, 0)), r"numpy or lists.*torch\.exp"),
    "a list": (dict(score_mod=lambda s, b, h, i, j: s + [1, 2][h]), "aux_tensors"),
    "a dictionary": (dict(score_mod=lambda s, b, h, i, j: s + {0: 1}[h]), "aux_tensors"),
    "a sum with a tensor": (dict(score_mod=lambda s, b, h, i, j: s + torch.ones(50)), "its elements, one index"),
    "a tensor beside the compiler": (dict(score_mod=lambda s, *_: torch.ones(50)[cutlass.Int32(s)]), "aux_tensors"),
    "a function of torch": (dict(score_mod=lambda s, b, h, i, j: torch.erf(s)), r"torch\.erf: accepted: .*tanh"),
    "a slice": (dict(score_mod=lambda s, b, h, i, j, aux: s + aux[0][:, j]), "one index for each dimension"),
    "aux in a loop": (dict(score_mod=lambda s, b, h, i, j, aux: s + sum(x[j] for x in aux)), r"aux\[0\], aux\[1\]"),
    "an index from the end": (dict(score_mod=lambda s, b, h, i, j, aux: s * aux[0][-1]), r"aux\[0\]: index -1"),
    "memory": (dict(score_mod=lambda s, b, h, i, j, aux: aux[0].iterator), r"iterator: accepted: its elements"),
    "an exponent": (dict(score_mod=lambda s, b, h, i, j: s**0.3), r"torch\.exp2"),
    "a large integer": (dict(score_mod=lambda s, b, h, i, j: s + (i - 2**40)), "integers of 32 bits"),
    "a comparison as a score": (dict(score_mod=lambda s, b, h, i, j: s > 0), "returned a comparison.*mask_mod"),
    "a partial": (dict(score_mod=functools.partial(lambda x, s, b, h, i, j: x, None)), "partial.*returned None"),
    "three parameters": (dict(mask_mod=lambda b, i, j: i > j), r"its parameters; accepted: mask_mod\(batch, head"),
    "a ScoreMod of the other kind": (
        dict(mask_mod=ScoreMod.of(lambda s, b, h, i, j, aux: s)),
        "is a score_mod: it returns a score",
    ),
    "the compiler's if": (dict(score_mod=lambda *x: never() if abs(cutlass.Float32(x[0])) > 0 else x[0]), "select_"),
    "an element without a type": (
        dict(score_mod=lambda s, b, h, i, j, aux: select_(cutlass.Float32(s) > 0, s, aux[0][j])),
        r"cannot be staged: DSLNotImplemented: error: .* \.to\(cutlass\.Float32\)",
    ),
    "the compiler's comparison": (dict(score_mod=lambda s, *x: cutlass.Float32(s) > 0), "returned a comparison"),
}  # fmt: skip


@pytest.mark.parametrize("options, text", REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_traced_says_what_to_write(options, text):
    (name,) = options
    with pytest.raises(TypeError, match=f"(?s)^{name}: .*{text}"):
        flash_attn_func(*problem(), **options, aux_tensors=[torch.zeros(KEYS)])


@pytest.mark.parametrize(
    "aux, text", [([], "0 of them"), ([torch.zeros(2, KEYS)], r"\[0\]: shape \(2, 50\)")]
)
@pytest.mark.parametrize("name", ["score_mod", "mask_mod"])
def test_aux_tensors_that_the_function_does_not_read_like_that_are_refused(name, aux, text):
    score = {
        "score_mod": lambda s, b, h, i, j, aux: s + aux[0][j],
        "mask_mod": lambda b, h, i, j, aux: aux[0][j] > 0,
    }
    with pytest.raises(ValueError, match=f"^aux_tensors.*{text}.*{name} reads"):
        flash_attn_func(*problem(), **{name: score[name]}, aux_tensors=aux)
