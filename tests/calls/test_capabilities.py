"""capabilities() says what flash_attn_func does: the two are compared on every row."""

import pytest
import torch

from cute_fa4 import Capability, capabilities, compile_cache, flash_attn_func, masks
from cute_fa4.calls.ask.capabilities import ARCHS, DTYPES, HEAD_DIMS
from cute_fa4.calls.operands.tensors import DTYPE_NAMES, check
from cute_fa4.sm100.choose.choose_config import config_for
from cute_fa4.sm100.choose.which_kernel import Call, which_kernel
from tests.suite import turns

TORCH_DTYPE = {name: dtype for dtype, name in DTYPE_NAMES.items()}


def outcome_of_a_call(row: Capability) -> bool:
    """Whether a call with tensors of this row passes every check that precedes the compiler."""
    q = torch.zeros(1, 3, 2 * row.group, row.head_dim).to(TORCH_DTYPE[row.dtype])
    k = torch.zeros(1, 5, 2, row.head_dim).to(TORCH_DTYPE[row.dtype])
    v = torch.zeros(1, 5, 2, row.head_dim_v).to(TORCH_DTYPE[row.dtype])
    try:
        check(q, k, v, None)
        config_for(
            qkv_dtype=DTYPE_NAMES[q.dtype],
            head_dim=row.head_dim,
            group=row.group,
            mask=masks.Causal() if row.causal else masks.Full(),
            write_lse=row.return_lse,
            arch=row.arch,
        )
    except (TypeError, ValueError):
        return False
    return True


@pytest.mark.parametrize("group", [1, 2, 7])  # none, a power of two, neither
def test_every_row_says_what_a_call_does(group):
    rows = capabilities(group=group)
    assert len(rows) == len(DTYPES) * len(HEAD_DIMS) * 2 * 2 * len(ARCHS)
    for row in rows:
        assert row.runs == outcome_of_a_call(row), row
        assert row.runs == (not row.reasons) == bool(row.devices), row


def test_the_supported_combinations_are_those_of_the_readme():
    runs = {(row.dtype, row.head_dim) for row in capabilities() if row.runs}
    of_16_bits = {(dtype, d) for dtype in ("bf16", "fp16") for d in HEAD_DIMS}
    of_8_bits = {(dtype, d) for dtype in ("e4m3", "e5m2") for d in (32, 64, 80, 96, 128, 192, 256)}
    assert runs == of_16_bits | of_8_bits
    for row in capabilities():  # mask, LSE and arch never decide
        assert row.runs == ((row.dtype, row.head_dim) in runs)


def test_every_option_of_a_call_may_be_named():
    named = dict(softmax_scale=0.1, s_aux=torch.zeros(1), q_descale=None)
    assert all(row.runs for row in capabilities(dtype="bf16", head_dim=64, **named))


@pytest.mark.parametrize(
    "asked, name, near",
    [
        (dict(cache_seqlen=True), "cache_seqlen", "cache_seqlens"),
        (dict(head_dims=64), "head_dims", "head_dim"),
        (dict(windowsize=(1, 1)), "windowsize", "window_size"),
        (dict(cache_seqlens=True, page_sizes=3), "page_sizes", "page_size"),
        (dict(latent=True, is_fp8_kvcach=True), "is_fp8_kvcach", "is_fp8_kvcache"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(asked, name, near):
    with pytest.raises(
        TypeError,
        match=rf"^{name}: not a parameter of flash_\w+; accepted: .*; did you mean {near}\?$",
    ):
        capabilities(**asked)


def test_different_head_dims_of_k_and_v_run():
    rows = capabilities(head_dim=128, head_dim_v=64, dtype="bf16")
    assert rows
    for row in rows:
        assert row.runs and outcome_of_a_call(row)


def test_a_column_that_is_given_has_that_value_only():
    [row] = capabilities(
        dtype=torch.float16, head_dim=96, causal=False, return_lse=True, arch="sm_103a", group=4
    )
    assert row == Capability(
        dtype="fp16",
        head_dim=96,
        head_dim_v=96,
        causal=False,
        group=4,
        return_lse=True,
        arch="sm_103a",
        runs=True,
        reasons=(),
        devices=("cuda, compute capability 10.3",),
        families=("mha2q", "mha1q", "mhaswap"),
    )


@pytest.mark.parametrize(
    "question",
    [
        dict(dtype=torch.float32),
        dict(dtype="int8"),
        dict(head_dim=0),
        dict(head_dim=100),
        dict(group=0),
    ],
    ids=str,
)
def test_values_nobody_built_are_answered_and_not_raised(question):
    rows = capabilities(**question)
    assert rows
    for row in rows:
        assert not row.runs
        [value] = question.values()
        assert any(str(value) in reason for reason in row.reasons), row


@pytest.mark.parametrize(
    "parameters",
    [dict(num_splits=-3), dict(tokens_per_split=100), dict(block_sparse_tensors=())],
    ids=str,
)
def test_parameters_have_the_reasons_that_the_call_raises(parameters):
    q = torch.zeros(1, 8, 2, 128, dtype=torch.bfloat16)
    with pytest.raises((TypeError, ValueError)) as raised:
        flash_attn_func(q, q, q, **parameters)
    for row in capabilities(dtype="bf16", head_dim=128, **parameters):
        assert not row.runs
        assert list(row.reasons) == [str(raised.value)]


def test_split_keys_run():
    for parameters in (dict(num_splits=4), dict(num_splits=0), dict(tokens_per_split=512)):
        assert all(row.runs for row in capabilities(dtype="bf16", head_dim=128, **parameters))


def test_pack_gqa_may_be_asked_for_of_any_group():
    """It says how a call runs and not what it returns: a group that fits no tile has tiles for each head."""
    built = dict(softcap=30.0, window_size=(128, 0), dtype="bf16", head_dim=128)
    for group in (7, 8, 128, 200):
        asked = [capabilities(pack_gqa=wish, group=group, **built) for wish in (True, None)]
        assert asked[0] == asked[1] and all(row.runs for row in asked[0])
        for queries in (1, 40, 300):
            kernels = {
                which_kernel(Call("bf16", 128, 128, group=group, seqlen_q=queries, pack_gqa=wish))
                for wish in (True, None)
            }
            assert len(kernels) == 1


def test_devices_are_asked_by_compute_capability():
    for row in capabilities(compute_capability=(10, 0), head_dim=128, dtype="bf16"):
        assert row.runs
        assert row.arch == "sm_100a"
    for row in capabilities(compute_capability=(9, 0), head_dim=128, dtype="bf16"):
        assert not row.runs
        assert "compute capability 9.0" in row.reasons[0]
    with pytest.raises(TypeError, match="arch and compute_capability"):
        capabilities(compute_capability=(10, 0), arch="sm_100a")


def test_a_parameter_that_does_not_exist_is_an_error():
    with pytest.raises(TypeError, match="dropout_p"):
        capabilities(dropout_p=0.1)


def test_asking_compiles_nothing():
    compiles = compile_cache.statistics().compiles
    capabilities()
    assert compile_cache.statistics().compiles == compiles


def test_a_latent_cache_is_asked_about_by_its_name():
    rows = capabilities(latent=True, group=128, dtype="bf16", causal=True, return_lse=True)
    assert [(row.head_dim, row.head_dim_v, row.runs) for row in rows] == [(576, 512, True)] * 2
    assert {row.families for row in rows} == {("mla_pair",)}
    few = capabilities(latent=True, group=16, dtype="bf16", causal=True, return_lse=True)
    assert {row.families for row in few} == {("mla_decode",)}
    rows = capabilities(latent=True, group=128, is_fp8_kvcache=True, causal=True, return_lse=True)
    assert {row.dtype for row in rows if row.runs} == {"bf16"}  # as the rotary columns are
    assert {row.families for row in rows if row.runs} == {("mla_widenpair",)}
    few = capabilities(latent=True, group=16, is_fp8_kvcache=True, causal=True, return_lse=True)
    assert {row.families for row in few if row.runs} == {("mla_widen",)}
    for group, family in ((16, "mla_widen"), (128, "mla_widenpair")):
        rows = capabilities(
            latent=True, head_dim=512, group=group, is_fp8_kvcache=True, arch="sm_100a"
        )
        runs = {(row.dtype, row.head_dim_v, row.families) for row in rows if row.runs}
        assert runs == {("bf16", 512, (family,))}  # rows of 584 bytes
    of_16 = dict(latent=True, kv_dtype="e4m3", dtype="bf16", causal=True, return_lse=True)
    for said, families in (
        (dict(group=16), ("mla_decode",)),  # q is quantized
        (dict(group=16, q_quantize="never"), ("mla_widen",)),
        (dict(group=128, q_quantize="auto"), ("mla_pair",)),
        (dict(group=128, q_quantize="never"), ("mla_widenpair",)),
    ):
        assert {row.families for row in capabilities(**of_16, **said)} == {families}
    [four] = capabilities(**of_16 | dict(kv_dtype="e2m1"), arch="sm_100a")
    assert not four.runs and "kv_dtype='e2m1' with descales='', latent=True" in four.reasons[0]
    with pytest.raises(TypeError, match="seqlen_k: with latent=True"):
        capabilities(latent=True, seqlen_k=64)
    [other] = capabilities(
        latent=True, head_dim=320, head_dim_v=256, dtype="bf16", causal=True, return_lse=True, arch="sm_100a"
    )  # fmt: skip
    assert not other.runs and "qk_depth=320" in other.reasons[0]


def of_compiler(score, batch, head, q_idx, kv_idx):
    """A function that is staged, not traced: it has no derivative."""
    import cutlass.cute as cute

    return cute.math.tanh(score)


# name -> (what is asked, whether it has gradients)
WITH_GRADIENTS = {
    "no option": (dict(), True),
    "a window, split": (dict(window_size=(5, 0), num_splits=2), True),
    "a mask": (dict(mask=masks.window(3, 0)), True),
    "chunks": (dict(mask=masks.chunked(4)), True),
    "soft cap": (dict(softcap=2.0), True),
    "sinks": (dict(learnable_sink=torch.zeros(2)), True),
    "key_limit": (dict(key_limit=torch.tensor([3], dtype=torch.int32)), True),
    "a function of the compiler": (dict(score_mod=of_compiler), False),
    "head dim 136, also of v": (dict(head_dim=136), True),
    "head dim 256": (dict(head_dim=256), True),
    "head dim 272": (dict(head_dim=272), False),
    "DeepSeek's head dims": (dict(head_dim=192, head_dim_v=128), True),
    # Of as many rows as the k that a question has without a length.
    "k_rope": (dict(head_dim=80, head_dim_v=64, k_rope=torch.zeros(1, 4096, 16).bfloat16()), True),
    "k_rope of 8 bits": (
        dict(head_dim=80, k_rope=torch.zeros(1, 4096, 16).to(torch.float8_e4m3fn)),
        False,
    ),
}


@pytest.mark.parametrize("name", turns.by_turns(WITH_GRADIENTS))
def test_with_gradients_it_answers_as_the_call_does(name):
    """All of these run without gradients; with them the call refuses what the row does."""
    asked, wanted = WITH_GRADIENTS[name]
    question = (
        dict(dtype="bf16", head_dim=64, causal=False, return_lse=False, arch="sm_100a") | asked
    )
    [plain], [row] = capabilities(**question), capabilities(**question, backward=True)
    assert plain.runs and row.runs is wanted and bool(row.reasons) is not wanted
    options = {n: x for n, x in asked.items() if not n.startswith("head_dim")}
    if "k_rope" in options:
        options["k_rope"] = options["k_rope"][:, :4]
    q = torch.zeros(1, 4, 2, question["head_dim"], dtype=torch.bfloat16, requires_grad=True)
    k = q[..., : q.shape[-1] - (asked["k_rope"].shape[-1] if "k_rope" in asked else 0)]
    v = q[..., : question.get("head_dim_v", q.shape[-1])]
    if wanted:
        flash_attn_func(q, k, v, **options).sum().backward()
    else:
        with pytest.raises(NotImplementedError, match="^q: requires_grad"):
            flash_attn_func(q, k, v, **options)
