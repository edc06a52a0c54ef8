"""What torch.compile says about a call that is refused: the package's sentence first, not Dynamo's about itself."""

import pytest
import torch
from torch._dynamo.exc import Unsupported
from torch._subclasses.fake_tensor import FakeTensorMode

from cute_fa4 import EmulatorWarning, flash_attn_func, flash_attn_varlen_func, masks
from tests.serving.test_errors import PACKED
from tests.test_interface import K, Q, V

pytestmark = pytest.mark.filterwarnings(f"ignore::{EmulatorWarning.__module__}.EmulatorWarning")

DENSE = dict(q=Q, k=K, v=V)
# Refusals in Python code that Dynamo traces, and refusals by an operator on tensors without data.
REFUSED = {
    "mask": (flash_attn_func, DENSE | dict(mask="causal"), TypeError),
    "a tensor as mask": (flash_attn_func, DENSE | dict(mask=torch.zeros(8, 8)), TypeError),
    "both of numbers": (lambda **call: flash_attn_func(**call, mask=masks.both(1, 2)), DENSE, None),
    "a switch": (flash_attn_func, DENSE | dict(return_lse="a"), TypeError),
    "dropout": (flash_attn_func, DENSE | dict(dropout_p=0.5), NotImplementedError),
    "a misspelt name": (flash_attn_func, DENSE | dict(casual=True), TypeError),
    "dropout by position": (lambda: flash_attn_func(Q, K, V, 0.0), {}, TypeError),
    "head dim": (flash_attn_func, DENSE | dict(k=K[..., :32]), ValueError),
    "strides": (flash_attn_func, DENSE | dict(k=torch.zeros(1, 8, 1, 65).bfloat16()[..., :64]), ValueError),
    "offsets": (flash_attn_varlen_func, PACKED | dict(cu_seqlens_q=torch.tensor([0, 2, 5])), TypeError),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_in_a_graph_begins_with_the_sentence_of_the_package(name):
    function, call, error = REFUSED[name]
    with pytest.raises((TypeError, ValueError, NotImplementedError)) as refused:
        function(**call)
    sentence = str(refused.value).partition("; did you mean")[
        0
    ]  # what it searches is not in a graph
    torch._dynamo.reset()
    with pytest.raises(Unsupported) as in_graph:
        torch.compile(function, fullgraph=True, backend="eager")(**call)
    if error is not None:  # masks.both raises before the package is asked for attention
        assert str(in_graph.value).startswith(sentence)
    assert sentence in str(in_graph.value)
    torch._dynamo.reset()
    with pytest.raises(refused.type) as broken:  # without a full graph it is the error itself
        torch.compile(function, backend="eager")(**call)
    assert str(broken.value).startswith(sentence)


def test_other_tracers_see_the_error_itself():
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        pytest.raises(ValueError, match="^k: head_dim 32"),
    ):
        flash_attn_func(Q, K[..., :32], V)


def test_what_other_packages_pass_by_default_is_no_break():
    call = torch.compile(
        lambda q, k, v: flash_attn_func(q, k, v, dropout_p=0.0, return_attn_probs=False),
        fullgraph=True,
        backend="eager",
    )
    assert torch.equal(call(Q, K, V), flash_attn_func(Q, K, V))
