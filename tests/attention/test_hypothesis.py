"""Attention of random shapes, layouts and values; a failure prints the line that runs it again."""

from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from tests import strided, values
from tests.attention.agreement import assert_agrees, reproduce
from tests.cases import TORCH_DTYPES, Case

# Key tiles an example may walk: up to half a second on the emulator.
MAX_WORK = 12
# One compile each: few, and between them every head dim, both dtypes and both kinds of group.
CONFIGURATIONS = [(64, "bf16", 1), (72, "fp16", 1), (80, "bf16", 1), (96, "fp16", 1)]
CONFIGURATIONS += [(128, "bf16", 1), (128, "fp16", 3)]
assert {dtype for _, dtype, _ in CONFIGURATIONS} == set(TORCH_DTYPES)


@st.composite
def random_cases(draw) -> Case:
    head_dim, dtype, group = draw(st.sampled_from(CONFIGURATIONS))
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
        causal=draw(st.booleans()),
        strides=draw(st.sampled_from(layouts)),
        values=draw(st.sampled_from(list(values.MAKERS))),
    )


# No deadline: an example's time is the emulator's, and the first of a configuration compiles.
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=random_cases(), seed=st.integers(0, 2**16))
def test_random_cases_agree_with_float64(case, seed):
    note(f"run again: {reproduce(case, seed)}")
    assert_agrees(case, seed=seed)
