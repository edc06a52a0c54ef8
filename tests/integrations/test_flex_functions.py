"""Functions of torch's FlexAttention that capture tensors, as its documentation has them, against torch in float64.

The problem is 140 queries and 200 keys in blocks of 128: two blocks of each side, of which one is ragged; two sequences
and two heads, so that a wrong batch or head shows.
"""

from __future__ import annotations

import functools
import gc
import weakref

import pytest
import torch
from torch.nn.attention import flex_attention as torch_flex
from torch.nn.attention.flex_attention import and_masks, create_block_mask, or_masks

from cute_fa4 import block_mask, compile_cache, flex_attention
from cute_fa4.calls.options import functions_of
from cute_fa4.score_mods import ScoreMod, composed
from tests.attention.listed import Listed, assert_right

pytestmark = pytest.mark.filterwarnings(
    "ignore"
)  # that the emulator runs, and that torch's is not compiled

BATCH, HEADS, QUERIES, KEYS = SIZES = 2, 2, 140, 200
CALL = Listed.draw((BATCH, QUERIES, KEYS), (HEADS, HEADS), (128, 128), (1.0, 1.0))
HEADS_FIRST = [x.transpose(1, 2) for x in (CALL.q, CALL.k, CALL.v)]


def drawn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


# --- name -> function(data) -> function of a score or a mask, data, other data


def document_mask(document_id):
    def document(b, h, q_idx, kv_idx):
        return document_id[b, q_idx] == document_id[b, kv_idx]

    return and_masks(causal, document)


def prefix_lm(prefix_length):
    def prefix(b, h, q_idx, kv_idx):
        return kv_idx < prefix_length[b]

    return or_masks(prefix, causal)


def sliding_window(window):  # of no dimensions
    return lambda b, h, q_idx, kv_idx: causal(b, h, q_idx, kv_idx) & (q_idx - kv_idx <= window)


def hidden_keys(hidden):
    return lambda b, h, q_idx, kv_idx: ~hidden[b, kv_idx]


def alibi(slopes):
    return lambda score, b, h, q_idx, kv_idx: score + slopes[h] * (kv_idx - q_idx)


def relative_table(table):
    """Negative distances count from the end, as in torch."""
    return lambda score, b, h, q_idx, kv_idx: score + table[h][q_idx - kv_idx]


def bias_of_a_whole_mask(bias):
    def biased(score, b, h, q_idx, kv_idx):
        minus_infinity = torch.full_like(score, float("-inf"))
        return torch.where(
            bias[b, h, q_idx, kv_idx] > -1, score + bias[b, h, q_idx, kv_idx], minus_infinity
        )

    return biased


DOCUMENTS = torch.arange(KEYS).expand(BATCH, -1) // 60
FUNCTIONS = {
    "document mask": (document_mask, DOCUMENTS, DOCUMENTS // 2),
    "prefix LM": (prefix_lm, torch.tensor([30, 170]), torch.tensor([150, 0])),
    "sliding window": (sliding_window, torch.tensor(50), torch.tensor(7)),
    "hidden keys": (hidden_keys, drawn(BATCH, KEYS) > 0.5, drawn(BATCH, KEYS) < 0),
    "ALiBi": (alibi, torch.tensor([0.5, 0.0625]), torch.tensor([0.01, 0.25])),
    "relative table": (relative_table, drawn(HEADS, QUERIES + KEYS), -drawn(HEADS, QUERIES + KEYS)),
    "bias": (bias_of_a_whole_mask, drawn(*SIZES).half(), -drawn(*SIZES).half()),
}  # fmt: skip
MASKS = ("document mask", "prefix LM", "sliding window", "hidden keys")


def options_of(name: str, function) -> dict:
    if name not in MASKS:
        return {"score_mod": function}
    return {"block_mask": create_block_mask(function, *SIZES, device="cpu")}


def assert_is_torchs(**options) -> None:
    found = flex_attention(*HEADS_FIRST, **options, return_lse=True)
    q, k, v = (x.double() for x in HEADS_FIRST)
    exact, exact_lse = torch_flex.flex_attention(q, k, v, **options, return_lse=True)
    size = torch_flex.flex_attention(q, k, v.abs(), **options)
    allowed = 2.0**-8 * (1.1 * size + exact.abs()) + 1e-5
    out, exact, allowed = (x.transpose(1, 2) for x in (found[0], exact, allowed))
    assert_right((out, found[1]), (exact, exact_lse.double(), allowed))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_that_captures_tensors_is_torchs_and_reads_them_at_each_call(name):
    """The same tensor with other values, then another tensor: right results, and no other kernel."""
    of, data, others = FUNCTIONS[name]
    data, compiles = data.clone(), None
    function = of(data)
    for change in (lambda: function, lambda: (data.copy_(others), function)[1], lambda: of(others)):
        assert_is_torchs(**options_of(name, change()))
        compiles = compiles or compile_cache.statistics().compiles
        assert compile_cache.statistics().compiles == compiles


def test_a_captured_number_is_part_of_the_kernel():
    """The soft cap of torch's documentation: another cap is another function."""

    def soft_cap(cap):
        return lambda score, b, h, q_idx, kv_idx: cap * torch.tanh(score / cap)

    kernels = set()
    for cap in (0.5, 2.0):
        assert_is_torchs(score_mod=soft_cap(cap))
        kernels.add(ScoreMod.of(soft_cap(cap)).key)
    assert len(kernels) == 2


# --- wherever a function has its tensors from

SLOPES = torch.tensor([0.5, 0.25])


def plain(slopes, score, b, h, q_idx, kv_idx):
    return score + slopes[h] * kv_idx


class Layer(torch.nn.Module):
    def __init__(self, buffer: bool):
        super().__init__()
        if buffer:
            self.register_buffer("slopes", SLOPES)
        else:
            self.slopes = SLOPES

    def forward(self, score, b, h, q_idx, kv_idx):
        return plain(self.slopes, score, b, h, q_idx, kv_idx)


def closure():
    slopes = SLOPES
    return lambda *given: plain(slopes, *given[:5])


def default():
    return lambda s, b, h, i, j, slopes=SLOPES: plain(slopes, s, b, h, i, j)


def nested():
    inner = (closure(),)
    return lambda *given: inner[0](*given)


WAYS = {
    "closure": (closure, "captures slopes"),
    "global": (lambda: lambda *given: plain(SLOPES, *given[:5]), "captures SLOPES"),
    "default": (default, "captures slopes"),
    "closure of a function in a tuple": (nested, "captures slopes"),
    "argument of a partial": (lambda: functools.partial(plain, SLOPES), "captures argument 0"),
    "attribute of an object": (lambda: Layer(False), r"captures \.slopes"),
    "buffer of a module": (lambda: Layer(True), r"captures \.slopes"),
    "bound method": (lambda: Layer(True).forward, r"captures \.slopes"),
}
Q = CALL.q


@pytest.mark.parametrize("way", WAYS)
def test_a_tensor_is_found_wherever_it_comes_from(way):
    """The function computes what one of aux does: it has the same key, and so the same kernel. It holds no tensor."""
    function = WAYS[way][0]()
    for _ in range(2):  # traced, and known
        mods, aux = functions_of(Q, {"score_mod": function, "mask_mod": None}, None)
        assert len(aux) == 1 and aux[0] is SLOPES
        same = ScoreMod.of(lambda score, b, h, q_idx, kv_idx, aux: score + aux[0][h] * kv_idx)
        assert mods["score_mod"] == same and mods["score_mod"].captured == ()


@pytest.mark.parametrize("way", WAYS)
def test_a_refusal_names_the_tensor(way, monkeypatch):
    monkeypatch.setitem(globals(), "SLOPES", SLOPES.double())
    with pytest.raises(TypeError, match=f"score_mod: .*{WAYS[way][1]}: dtype torch.float64; acc"):
        flex_attention(*HEADS_FIRST, score_mod=WAYS[way][0]())


REFUSED = {
    "device": (lambda t: lambda s, b, h, i, j: s + t[h], torch.zeros(2, device="meta"), "t: on meta while q is on cpu"),
    "too few indices": (lambda t: lambda s, b, h, i, j: s + t[h], torch.zeros(2, 2), "t: shape .2, 2., read with 1"),
    "too many indices": (lambda t: lambda s, b, h, i, j: s + t[h, i], torch.zeros(2), "t: shape .2,., read with 2"),
    "a vector as a scalar": (lambda t: lambda s, b, h, i, j: s + t, torch.zeros(2), r"Tensor of shape \(2,\) beside"),
    "a slice": (lambda t: lambda s, b, h, i, j: s + t[:, j], torch.zeros(2, 2), "a captured tensor: a slice"),
    "a float as an index": (lambda t: lambda s, b, h, i, j: s + t[s], torch.zeros(2), "an index that is a score"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused(name):
    of, tensor, text = REFUSED[name]
    with pytest.raises((TypeError, ValueError), match=f"^score_mod: .*{text}"):
        flex_attention(*HEADS_FIRST, score_mod=of(tensor))


# --- beside aux_tensors, and with other captured tensors


def test_captured_tensors_follow_those_that_are_given():
    """aux[-1] is the last that is given; a tensor that both functions read has one number."""
    given, shared, own = drawn(3), drawn(2), drawn(KEYS)

    def score_mod(score, b, h, q_idx, kv_idx, aux):
        return score * aux[-1][h] + shared[h] + own[kv_idx]

    def mask_mod(b, h, q_idx, kv_idx, aux):
        return aux[0][b] + shared[h] > 0

    mods, aux = functions_of(Q, {"score_mod": score_mod, "mask_mod": mask_mod}, [given])
    assert [id(x) for x in aux] == [id(given), id(shared), id(own)]
    assert mods["score_mod"] == ScoreMod.of(
        lambda score, b, h, q_idx, kv_idx, aux: score * aux[0][h] + aux[1][h] + aux[2][kv_idx]
    )
    assert mods["mask_mod"] == ScoreMod.of(lambda b, h, q_idx, kv_idx, aux: aux[0][b] + aux[1][h] > 0)  # fmt: skip
    with pytest.raises(ValueError, match=r"aux_tensors: 0 of them, and score_mod reads aux\[-1\]"):
        functions_of(Q, {"score_mod": score_mod, "mask_mod": None}, None)


def test_composed_functions_keep_their_tensors():
    first, then = drawn(2), drawn(3)
    both = composed(
        ScoreMod.of(lambda s, b, h, i, j: s * first[h]), ScoreMod.of(lambda s, b, h, i, j: s + then[h])
    )  # fmt: skip
    mods, aux = functions_of(Q, {"score_mod": both, "mask_mod": None}, None)
    assert aux[0] is first and aux[1] is then
    assert mods["score_mod"] == composed(
        ScoreMod.of(lambda s, b, h, i, j, aux: s * aux[0][h]),
        ScoreMod.of(lambda s, b, h, i, j, aux: s + aux[1][h]),
    )


def test_what_a_function_computes_of_its_tensors_is_computed_at_each_call():
    """A product of two tensors, a number of one, a tensor that the function makes: none stays from the call before."""
    slopes, factor, window = drawn(2), torch.tensor(2.0), torch.tensor(3)

    def score_mod(score, b, h, q_idx, kv_idx):
        near = (q_idx - kv_idx) < window.item()
        return torch.where(near, score + (slopes * factor)[h], torch.tensor(-torch.inf))

    keys = []
    for number, size in ((3, 2.0), (3, 4.0), (9, 4.0)):
        window.fill_(number), factor.fill_(size)
        mods, aux = functions_of(Q, {"score_mod": score_mod, "mask_mod": None}, None)
        assert aux[0].equal(slopes * size)
        keys.append(mods["score_mod"].key)
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize("of", [closure, nested, lambda: functools.partial(plain, SLOPES)])
def test_a_traced_function_does_not_keep_its_tensors(of, monkeypatch):
    monkeypatch.setitem(globals(), "SLOPES", SLOPES.clone())
    function, alive = of(), weakref.ref(SLOPES)
    functions_of(Q, {"score_mod": function, "mask_mod": None}, None)
    monkeypatch.undo()
    del function
    gc.collect()
    assert alive() is None


def test_a_block_mask_of_the_package_takes_a_function_that_captures():
    found = block_mask(document_mask(DOCUMENTS), BATCH, 1, 128, 128, block_size=(128, 128))
    theirs = create_block_mask(document_mask(DOCUMENTS), BATCH, 1, 128, 128, device="cpu")
    assert found.full_block_cnt.equal(theirs.full_kv_num_blocks)
    assert found.mask_block_cnt.equal(theirs.kv_num_blocks)


def test_a_captured_tensor_has_the_gradient_of_an_aux_tensor():
    """Bit for bit those of the same tensors in aux_tensors, which tests/sm100/backward compares with float64."""
    from cute_fa4 import flash_attn_func

    slopes, table, scale = (
        x.requires_grad_() for x in (drawn(2), drawn(QUERIES + KEYS), drawn(1)[0])
    )

    def score_mod(score, b, h, q_idx, kv_idx):
        return score * scale + slopes[h] * (kv_idx - q_idx) / 64 + table[q_idx - kv_idx + KEYS - 1]

    def of_aux(score, b, h, q_idx, kv_idx, aux):
        distance = q_idx - kv_idx + KEYS - 1
        near = torch.where(distance < 0, distance + aux[2].shape[0], distance)
        return score * aux[0][0] + aux[1][h] * (kv_idx - q_idx) / 64 + aux[2][near]

    q, k, v = (x.clone().requires_grad_() for x in (CALL.q, CALL.k, CALL.v))
    wanted = q, k, v, scale, slopes, table
    captured = flash_attn_func(q, k, v, score_mod=score_mod)
    aux = [scale.reshape(1), slopes, table]
    given = flash_attn_func(q, k, v, score_mod=of_aux, aux_tensors=aux)
    dout = drawn(*captured.shape).bfloat16()
    pairs = zip(*(torch.autograd.grad(x, wanted, dout) for x in (captured, given)), strict=True)
    assert all(a.equal(b) and a.abs().max() > 0 for a, b in pairs)
