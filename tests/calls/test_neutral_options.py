"""What an option must not do: neutral values of every option, in every family of kernels that can have it.

    a sink of -inf                              is none; one of +inf, or far above the scores, takes all the weight
    a soft cap far above the scores             has no effect except for the error of tanh
    a score_mod that returns the score          is none; so is a bias of 0, and are slopes of 0
    a window, a chunk, a limit, a mask_mod      that cover everything are none
    scales of 1                                 are none
    keys dense, packed, padded or in pages      are the same keys; a sequence without keys has out 0 and LSE -inf
    keys in one part, in two, in a cluster      have the same softmax
    an LSE                                      is returned or not
    a softmax scale                             is right as far as it is accepted
    a scale of q or k that is out of bounds     makes out and LSE NaN, of the rows that it belongs to
    scores of any size                          test_large_scores.py

Each family has a small call that reaches it (shapes.py). Against float64 all options meet in one call a family; the
sweep uses every value alone and every two together. Bits are equal where the kernel does the same operations:
sinks, scales and pages change where numbers come from and none of them.
"""

import math
import warnings

import pytest
import torch

from cute_fa4 import EmulatorWarning, compile_cache, emulator, flash_mla_with_kvcache
from cute_fa4.calls import repeat
from cute_fa4.calls.operands.latent_rows import numbers_of, rows_from
from cute_fa4.sm100.blueprint.problem import LARGEST_SCALE, SMALLEST_SCALE
from cute_fa4.sm100.choose.choose_config import FAMILIES, PAIRED
from cute_fa4.sm100.choose.config import FA4Config
from tests import pairwise
from tests.calls import neutral, shape_calls
from tests.calls.shapes import CHOSEN, LATENT, OTHERS, Shape, missing
from tests.serving.batches import CHECKS, LSE_ERROR, LSE_ERROR_OF_FP8, assert_agrees, attention
from tests.suite import turns

PLAIN = dict(
    sink="nothing",
    scores="nothing",
    mask="nothing",
    keys="dense",
    splits=1,
    lse=True,
    scales="nothing",
)
NAMES = turns.by_turns(OTHERS)
"""Every test runs the same third of the families in a commit: they share its kernels."""

SCORES_BELOW = 6  # standard normal q and k, and the default scale; test_the_bound_of_scores


def test_every_family_has_a_shape():
    assert not missing(), "add a line to SHAPES that reaches it"


def test_the_bound_of_scores():
    for shape in OTHERS.values():
        q, k = (
            x[0].double() for x in (shape_calls.batch_of(shape).q, shape_calls.batch_of(shape).k)
        )
        scores = torch.einsum("qhd,kd->hqk", q, k[:, 0]) * shape.head_dim**-0.5
        assert scores.abs().max() < SCORES_BELOW


@pytest.fixture(autouse=True)
def families(monkeypatch):
    """Of attention kernels that calls asked for."""
    found, function_for = [], compile_cache.function_for

    def noted(config, executor):
        if isinstance(config, FA4Config):
            found.append(config.schedule.family)
        return function_for(config, executor)

    monkeypatch.setattr(compile_cache, "function_for", noted)
    return found


def called(name: str, families, monkeypatch, **options) -> tuple:
    """The call of a family, which it reaches."""
    shape = CHOSEN[name]
    monkeypatch.setenv("CUTE_FA4_PAIR", "on" if shape.pairs else "auto")
    repeat.clear()
    found = shape_calls.called(shape, **PLAIN | options)
    assert set(families) == {name.partition(" ")[0]}
    families.clear()
    return found


def splits_of(name: str) -> tuple:
    """Values of num_splits: in a cluster and in two parts; pairs of CTAs have all keys."""
    schedule = FAMILIES[name.partition(" ")[0]]
    if issubclass(schedule, PAIRED):
        return (1,)
    return (0, 2) if getattr(schedule, "clusters", False) else (2,)


def masks_fit(name: str, mask: str = "all") -> bool:
    """Pairs of CTAs with two query tiles each are full or causal."""
    return name != "mhapair" or mask in ("nothing", "function", "limit")


def assert_right(batch, out, lse, scores: str, sink=None) -> None:
    capped = scores in ("soft cap", "all")
    error = capped * neutral.CAP_ERROR * SCORES_BELOW
    assert_agrees(batch, out, lse, score_error=error, sink=sink)


@pytest.mark.parametrize("name", NAMES)
def test_sinks_scales_and_pages_change_no_bit(name, families, monkeypatch):
    """Two query tiles over keys of 8 bits: where lengths of queries differ, work tiles have another order."""
    own = {"keys": "packed"} if name in ("mha2q e4m3", "mhawiden2q") else {}
    batch, out, lse = called(name, families, monkeypatch, **own)
    assert_agrees(batch, out, lse)
    scales = "heads" if scales_fit(name) else "nothing"
    paged = called(name, families, monkeypatch, sink="f32", keys="pages", scales=scales)
    assert_agrees(*paged)
    rows = slice(CHOSEN[name].queries)
    first = (out[rows], lse[:, rows]) if own else (out[0], lse[0])
    assert torch.equal(paged[1][rows], first[0]) and torch.equal(paged[2][:, rows], first[1])


FAR_ABOVE = (
    SCORES_BELOW + 58.0
)  # keys have e^-58 of the weight, which P in float16 and in 8 bits does not hold
FAR_SINKS = torch.tensor([FAR_ABOVE, math.inf]), torch.tensor([3e38, math.inf])


@pytest.mark.parametrize("name", NAMES)
def test_sinks_far_above_the_scores_and_infinite_ones(name, families, monkeypatch):
    """The kernels of the test before; a sequence has no keys. 3e38 is beyond the limit of scores."""
    scales = "heads" if scales_fit(name) else "nothing"
    for sink in FAR_SINKS:
        given = dict(learnable_sink=sink, keys="pages", scales=scales)
        assert_agrees(*called(name, families, monkeypatch, **given), sink=sink)


FAR_BELOW = torch.tensor([-3e38, -1e9])
"""Below the negative limit of scores; divided by a softmax scale, the first is no float32."""
LAST_SEES_ONE = (
    None,
    1 - shape_calls.KEYS,
)  # a window: the last query sees the first key, the others none


@pytest.mark.parametrize("splits", ["one part", "parts"])
@pytest.mark.parametrize("name", NAMES)
def test_sinks_far_below_the_scores(name, splits, families, monkeypatch):
    """Beside keys they are none. Alone they are the log-sum-exp: of a sequence without keys, of rows that see none."""
    number = 1 if splits == "one part" else splits_of(name)[0]
    given = dict(learnable_sink=FAR_BELOW, keys="padded", splits=number)
    batch, out, lse = called(name, families, monkeypatch, **given)
    assert_agrees(batch, out, lse, sink=FAR_BELOW)
    assert torch.equal(lse[1], FAR_BELOW[:, None].expand_as(lse[1]))
    if masks_fit(name):
        given |= dict(window_size=LAST_SEES_ONE)
        batch, out, lse = called(name, families, monkeypatch, **given)
        assert_agrees(
            batch, out, lse, sink=FAR_BELOW, visible=lambda p, j: j <= p + LAST_SEES_ONE[1]
        )


@pytest.mark.parametrize("scale", [SMALLEST_SCALE, LARGEST_SCALE])
@pytest.mark.parametrize("name", NAMES)
def test_every_softmax_scale_that_is_accepted(name, scale, families, monkeypatch):
    """Scores are whole numbers up to 256, which float32 adds up exactly: ties share a row's weight evenly."""
    batch, out, lse = called(name, families, monkeypatch, softmax_scale=scale, whole=True)
    exact, of_rows, allowed = attention(batch.q[0], batch.k[0], batch.v[0], scale=scale)
    assert ((out[0].double() - exact).abs() <= allowed).all()
    # c m and its product with ln 2 are rounded to float32, and the powers have their error.
    noise = LSE_ERROR_OF_FP8 if CHOSEN[name].eight_bits else LSE_ERROR
    assert ((lse[0].double() - of_rows).abs() <= of_rows.abs() * 2.0**-22 + noise).all()


def scales_fit(name: str, scales: str = "heads") -> bool:
    """Whether the call may have scales of 1."""
    shape = CHOSEN[name]
    return scales == "nothing" or shape.eight_bits or shape.kv_dtype is not None


ADDED_UP_BY_THE_PRODUCT = ("mha2q e4m3",)
"""Where no LSE is asked for, the product with V adds P of 8 bits up, if V has 128 columns (docs/numerics.md)."""


@pytest.mark.parametrize("name", [p for p in NAMES if p.values[0] not in ADDED_UP_BY_THE_PRODUCT])
def test_an_lse_changes_no_bit_of_out(name, families, monkeypatch):
    _, out, _ = called(name, families, monkeypatch)
    _, without, _ = called(name, families, monkeypatch, lse=False)
    assert torch.equal(out, without)


OUT_OF_BOUNDS = (2.0**20, 2.0**-70, 0.0, -1.0, math.inf, math.nan)


def assert_nan_in(batch, found, expected, rows) -> None:
    """These rows of the first sequence are NaN in out and LSE; all other rows are as expected."""
    out, lse = found
    bad = torch.zeros(out.shape[0], dtype=torch.bool)
    bad[rows] = True
    assert out[bad].double().isnan().all() and lse[:, bad].isnan().all()
    total = sum(len(q) for q in batch.q)
    good = ~bad[:total]
    assert torch.equal(out[:total][good].double(), expected[0][:total][good].double())
    assert torch.equal(lse[:, :total][:, good], expected[1][:, :total][:, good])
    second = slice(len(batch.q[0]), total)  # sees no key, whatever its scale
    assert (out[second].double() == 0).all() and (lse[:, second] == -math.inf).all()


@pytest.mark.parametrize(
    "name", [p for p in NAMES if scales_fit(p.values[0]) and not OTHERS[p.values[0]].blocks]
)
def test_scales_out_of_bounds_make_nan_of_out_and_lse(name, families, monkeypatch):
    """Three sequences, of which two have such a scale: the first, and the second, which has no keys."""
    of_heads = {
        f"{of}_descale": torch.ones(3, 1) for of in ("qk" if CHOSEN[name].eight_bits else "k")
    }
    batch, *plain = called(name, families, monkeypatch, keys="packed", **of_heads)
    queries = len(batch.q[0])
    for bad in OUT_OF_BOUNDS:
        given = of_heads | {"k_descale": torch.tensor([[bad], [bad], [1.0]])}
        _, *found = called(name, families, monkeypatch, keys="packed", **given)
        assert_nan_in(batch, found, plain, slice(queries))
    if not CHOSEN[name].eight_bits:  # q has no scales
        return
    of_rows = {"q_descale": torch.ones(batch_rows(batch), 2), "k_descale": torch.ones(3, 1)}
    _, *plain = called(name, families, monkeypatch, keys="packed", **of_rows)
    for bad in OUT_OF_BOUNDS:
        of_rows["q_descale"][queries - 1] = bad
        _, *found = called(name, families, monkeypatch, keys="packed", **of_rows)
        assert_nan_in(batch, found, plain, slice(queries - 1, queries))


def batch_rows(batch) -> int:
    """Of q as the packed call stores it."""
    return shape_calls.packed_q(batch)["q"].shape[0]


# A function of every score costs a compile of three to six seconds where 128 scores of a row are in one thread.
@pytest.mark.parametrize(
    "name, splits",
    turns.by_turns([(name, n) for name in OTHERS for n in splits_of(name)], among=OTHERS),
)
def test_all_options_together_agree_with_float64(name, splits, families, monkeypatch):
    options = dict(
        sink="bf16",
        scores="all" if CHOSEN[name].queries == 1 else "slopes",
        mask="all" if masks_fit(name) else "function",
        keys="padded",
        splits=splits,
        scales="one" if scales_fit(name) else "nothing",
    )
    batch, out, lse = called(name, families, monkeypatch, **options)
    assert_right(batch, out, lse, options["scores"])
    far = FAR_SINKS[splits == 0].bfloat16()  # of as many parts as there are, one counts it
    options |= dict(sink="nothing", learnable_sink=far)
    batch, out, lse = called(name, families, monkeypatch, **options)
    assert_right(batch, out, lse, options["scores"], far)


OPTIONS = {
    "name": tuple(OTHERS),
    "sink": ("nothing", "f32", "bf16"),
    "scores": ("nothing", "soft cap", "function", "bias", "slopes", "all"),
    "mask": ("nothing", "window", "chunk", "function", "limit", "all"),
    "keys": ("dense", "padded", "packed", "pages"),
    "splits": (0, 1, 2),
    "scales": ("nothing", "one", "heads"),
}
EVERY = pairwise.product(
    OPTIONS,
    lambda name, scales, splits, mask, **_: (
        scales_fit(name, scales) and masks_fit(name, mask) and splits in (1, *splits_of(name))
    ),
)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "case", [EVERY[n] for n in pairwise.covering(EVERY)], ids=lambda case: "-".join(map(str, case.values()))
)  # fmt: skip
def test_every_two_options_agree_with_float64(case, families, monkeypatch):
    batch, out, lse = called(families=families, monkeypatch=monkeypatch, **case)
    assert_right(batch, out, lse, case["scores"])
    _, without, _ = called(families=families, monkeypatch=monkeypatch, **case, lse=False)
    if case["name"] not in ADDED_UP_BY_THE_PRODUCT:
        assert torch.equal(out, without)


# --- latent caches, whose function has fewer options


def latent_call(shape: Shape) -> tuple:
    """-> (arguments of a call over KEYS keys in consecutive pages, and none; the rows as float64)."""
    generator = torch.Generator().manual_seed(0)
    pages = -(-shape_calls.KEYS // LATENT_PAGE)
    drawn = torch.randn(2 * pages * LATENT_PAGE, 576, generator=generator)
    q = torch.randn(2, shape.queries, shape.heads, 576, generator=generator).bfloat16()
    rows = stored_rows(shape, drawn)
    numbers = numbers_of(rows) if shape.of_rows else rows
    return dict(
        q=q,
        k_cache=rows.view(2 * pages, LATENT_PAGE, 1, -1),
        block_table=torch.arange(2 * pages, dtype=torch.int32).view(2, -1),
        cache_seqlens=torch.tensor([shape_calls.KEYS, 0], dtype=torch.int32),
        num_splits=1,
        **({"q_quantize": "never"} if shape.stays else {}),
    ), numbers.double()


def stored_rows(shape: Shape, drawn: torch.Tensor) -> torch.Tensor:
    """Rows of a latent cache of (rows, 576) numbers."""
    if shape.of_rows:
        return rows_from(drawn[:, :512], drawn[:, 512:])
    return drawn.to(shape_calls.TORCH[shape.kv_dtype or shape.dtype])


LATENT_PAGE = 16


def latent_called(name, families, **given) -> tuple:
    with warnings.catch_warnings(), emulator.use(checks=CHECKS):
        warnings.simplefilter("ignore", EmulatorWarning)
        found = flash_mla_with_kvcache(**given)
    assert set(families) == {name.partition(" ")[0]}
    families.clear()
    return found


def assert_latent(found, given, numbers, of_rows: bool) -> None:
    """The bound of tests/sm100/latent/dequantized/row_batches.py: roundings of numbers, of P and of out to bf16."""
    out, lse = found
    q, k = given["q"][0].double(), numbers[: shape_calls.KEYS]
    scores = torch.einsum("qhd,kd->hqk", q, k) * 576**-0.5
    exact = torch.einsum("hqk,kd->qhd", scores.softmax(-1), k[:, :512])
    assert (out[0].double() - exact).norm() < 2**-7 * exact.norm()
    assert (lse[0].double() - scores.logsumexp(-1)).abs().max() < (2e-2 if of_rows else 2e-4)
    assert (out[1] == 0).all() and (lse[1] == -math.inf).all()


@pytest.mark.parametrize("name", turns.by_turns(LATENT))
def test_latent_caches(name, families):
    """One query sees all keys, causal or not; pages in any order have the same keys; a sink of -inf is none.

    Whatever a sink is, the log-sum-exp of the keys has the same bits, and out their share of the weight.
    """
    given, numbers = latent_call(LATENT[name])
    plain = latent_called(name, families, **given)
    assert_latent(plain, given, numbers, LATENT[name].of_rows)
    order = torch.randperm(given["k_cache"].shape[0], generator=torch.Generator().manual_seed(1))
    cache = torch.empty_like(given["k_cache"])
    cache[order] = given["k_cache"]
    table = order[given["block_table"].long()].int()
    shuffled = given | dict(k_cache=cache, block_table=table, causal=True)
    shuffled |= neutral.of_sinks("f32", LATENT[name].heads)
    for found, expected in zip(latent_called(name, families, **shuffled), plain, strict=True):
        assert torch.equal(found, expected)
    assert_share(name, families, given, plain)


def assert_share(name, families, given, plain) -> None:
    """The call with sinks of every size. plain: what it returns without them."""
    heads = LATENT[name].heads
    sink = torch.tensor([1.0, FAR_ABOVE, math.inf, 3e38]).repeat(heads // 4)
    out, lse = latent_called(name, families, **given, attn_sink=sink)
    assert torch.equal(lse, plain[1])
    share = torch.sigmoid(lse.double() - sink[:, None]).transpose(1, 2)[..., None]
    assert torch.allclose(out.double(), plain[0].double() * share, rtol=2.0**-7, atol=1e-38)
    assert (out[0, :, :2] != 0).any() and (out[0, :, 2::4] == 0).all() and (out[1] == 0).all()
    same, with_sink = latent_called(name, families, **given, learnable_sink=sink)
    assert torch.equal(same, out)
    assert torch.equal(with_sink, torch.logaddexp(lse, sink[:, None].expand_as(lse)))


@pytest.mark.sweep
@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("name", turns.by_turns(LATENT))
def test_latent_caches_by_index_and_in_parts(name, splits, families):
    given, numbers = latent_call(LATENT[name])
    given["num_splits"] = splits
    plain = latent_called(name, families, **given)
    assert_latent(plain, given, numbers, LATENT[name].of_rows)
    assert_share(name, families, given, plain)
    listed = torch.full((2, 1, shape_calls.KEYS), -1, dtype=torch.int32)
    listed[0, 0] = torch.randperm(shape_calls.KEYS, generator=torch.Generator().manual_seed(1))
    given |= dict(block_table=None, cache_seqlens=None, indices=listed)
    assert_latent(latent_called(name, families, **given), given, numbers, LATENT[name].of_rows)
