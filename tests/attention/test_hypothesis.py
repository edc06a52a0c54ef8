"""Attention of random shapes, layouts and values; a failure prints the line that runs it again."""

from hypothesis import given, note, settings
from hypothesis import strategies as st

from tests import pairwise, strided, values
from tests.attention.agreement import assert_agrees, reproduce
from tests.cases import TORCH_DTYPES, Case

# Key tiles an example may walk: up to half a second on the emulator.
MAX_WORK = 12
# Head dim, dtype, group, causal. Each compiles up to three kernels, for many rows, for few and for decode: in the sweep
# every head dim, both dtypes and both kinds of group, in plain pytest those whose kernels other tests of this folder
# need, too. Their lengths, strides and values are as random.
EVERY = [
    (head_dim, dtype, group, causal)
    for head_dim, dtype, group in (
        (64, "bf16", 1), (72, "fp16", 1), (80, "bf16", 1), (96, "fp16", 1), (128, "bf16", 1), (128, "fp16", 3),
    )
    for causal in (False, True)
]  # fmt: skip
assert {dtype for _, dtype, *_ in EVERY} == set(TORCH_DTYPES)
SHARED = [(64, "bf16", 1, False), (128, "bf16", 1, False), (128, "bf16", 1, True)]


@st.composite
def random_cases(draw, configurations: list) -> Case:
    head_dim, dtype, group, causal = draw(st.sampled_from(configurations))
    batch = draw(st.integers(1, 2))
    heads_kv = draw(st.integers(1, 2 if group == 1 else 1))
    # Up to two CTAs of 256 rows a head, and as many key tiles as the work allows.
    seqlen_q = draw(st.integers(1, 300))
    ctas = batch * heads_kv * group * -(-seqlen_q // 256)
    seqlen_k = draw(st.integers(1, 128 * max(1, MAX_WORK // ctas)))
    same_shapes = group == 1 and seqlen_q == seqlen_k
    layouts = [name for name in strided.LAYOUTS if name != "fused_qkv" or same_shapes]
    return Case(
        batch=batch,
        heads_q=heads_kv * group,
        heads_kv=heads_kv,
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        head_dim=head_dim,
        dtype=dtype,
        causal=causal,
        strides=draw(st.sampled_from(layouts)),
        values=draw(st.sampled_from(list(values.MAKERS))),
    )


SETTINGS = settings(max_examples=25)


@SETTINGS
@given(case=random_cases(SHARED), seed=st.integers(0, 2**16))
def test_random_cases_agree_with_float64(case, seed):
    note(f"run again: {reproduce(case, seed)}")
    assert_agrees(case, seed=seed)


@pairwise.sweep_only("attention: random cases", seconds=60)
@SETTINGS
@given(case=random_cases(EVERY), seed=st.integers(0, 2**16))
def test_random_cases_of_every_configuration_agree_with_float64(case, seed):
    note(f"run again: {reproduce(case, seed)}")
    assert_agrees(case, seed=seed)
