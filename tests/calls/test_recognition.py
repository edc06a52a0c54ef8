"""What makes a call another than the latest one (cute_fa4/calls/recognition.py)."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from cute_fa4.calls import recognition
from cute_fa4.calls.recognition import recognition_of
from cute_fa4.calls.request import Choices
from cute_fa4.operands import NAMES, ROPE, SCALES, CallTensors
from cute_fa4.operands import NEW as NEW_ROWS
from tests.serving.batches import int32

Q, K, V, OUT = (torch.zeros(2, 16, 4, 64, dtype=torch.bfloat16) for _ in range(4))
TABLE, LENGTHS, SINK = int32([0, 1, 2, 3]).view(2, 2), int32([5, 20]), torch.zeros(4)
PLAIN = (
    None,
    (None, False, 0.0, None, None, None),
    (None, 1, None, None, None, None, None, "NHD", False, False),
)
COLUMNS = torch.zeros(2, 16, 64, dtype=torch.bfloat16)
NEW = tuple(torch.zeros(2, 1, 4, 64, dtype=torch.bfloat16) for _ in range(2))


def call(
    q=Q,
    k=K,
    v=V,
    out=None,
    used=None,
    table=None,
    rows=None,
    sink=None,
    aux=None,
    new=None,
    scales=None,
    rope=None,
):
    return CallTensors(
        *(q, k, v, out),
        seqused_k=used,
        page_table=table,
        cache_batch_idx=rows,
        learnable_sink=sink,
        aux_tensors=aux,
        **dict(zip(NAMES[NEW_ROWS], new or (), strict=False)),
        **dict(zip(NAMES[SCALES], scales or (), strict=False)),
        **dict(zip(NAMES[ROPE], rope or (), strict=False)),
    )


def asked(
    window=None,
    scale=None,
    causal=False,
    softcap=0.0,
    most=None,
    skips=None,
    splits=1,
    return_lse=False,
):
    choices = tuple(Choices(num_splits=splits, return_lse=return_lse))
    return window, (scale, causal, softcap, most, None, skips), choices


GIVEN = {
    "plain": call(),
    "out": call(out=OUT),
    "pages": call(used=LENGTHS, table=TABLE),
    "pages, sink": call(used=LENGTHS, table=TABLE, sink=SINK),
    "append": call(used=LENGTHS, table=TABLE, new=(*NEW, None)),
    "rows of a cache": call(used=LENGTHS, table=TABLE, rows=int32([1, 0])),
    "columns of k": call(rope=(COLUMNS, None)),
    "columns of k in pages": call(rope=(COLUMNS, TABLE)),
}


@pytest.mark.parametrize("given", GIVEN)
def test_a_call_is_like_itself_with_other_tensors_of_the_same_metadata(given):
    made = recognition_of(GIVEN[given], asked())

    def copied(value):
        if isinstance(value, tuple):
            return tuple(map(copied, value))
        return value.clone() if isinstance(value, torch.Tensor) else value

    assert made.accepts(CallTensors(*map(copied, GIVEN[given])), asked())


@pytest.mark.parametrize("given", GIVEN)
def test_what_is_given_is_part_of_it(given):
    made = recognition_of(GIVEN[given], asked())
    assert [name for name, other in GIVEN.items() if made.accepts(other, asked())] == [given]


WIDE = torch.zeros(2, 16, 4, 128, dtype=torch.bfloat16)
OTHER_TENSORS = {
    "length": call(q=Q[:, :8]),
    "stride": call(k=WIDE[..., :64]),
    "dtype": call(q=Q.half(), k=K.half(), v=V.half()),
    "dtype of one": call(v=V.half()),
    "device": call(q=Q.to("meta")),
    "gradient": call(q=Q.clone().requires_grad_()),
    "parameter": call(q=torch.nn.Parameter(Q.clone(), requires_grad=False)),
    "negated view": call(q=torch._neg_view(Q)),
    "one tensor twice": call(v=K),
    "functions read a tensor": call(aux=(SINK,)),
}


@pytest.mark.parametrize("case", OTHER_TENSORS)
def test_other_tensors_are_another_call(case):
    assert not recognition_of(call(), asked()).accepts(OTHER_TENSORS[case], asked())


OTHER_LENGTHS = {
    "batch": call(used=int32([1, 2, 3]), table=TABLE),
    "pages": call(used=LENGTHS, table=int32([0, 1, 2, 3, 4, 5]).view(2, 3)),
    "alignment of the table": call(used=LENGTHS, table=int32([0, 0, 1, 2, 3])[1:].view(2, 2)),
    "new rows": call(used=LENGTHS, table=TABLE, new=(NEW[0], NEW[1][:, :, :, ::1].half(), None)),
    "fewer rows of a cache": call(used=LENGTHS, table=TABLE, rows=int32([1])),
    "dtype of the sink": call(used=LENGTHS, table=TABLE, sink=SINK.half()),
}


@pytest.mark.parametrize("case", OTHER_LENGTHS)
def test_other_lengths_pages_and_rows_are_another_call(case):
    for given in ("pages", "pages, sink", "append", "rows of a cache"):
        assert not recognition_of(GIVEN[given], asked()).accepts(OTHER_LENGTHS[case], asked())


# Equal to what was asked for (asked(most=1, scale=1.0), ...) in Python, and refused or meant otherwise.
EQUAL = [
    (asked(causal=True), asked(causal=1)),
    (asked(softcap=0.0), asked(softcap=False)),
    (asked(scale=1.0), asked(scale=True)),
    (asked(most=1), asked(most=True)),
    (asked(most=1), asked(most=1.0)),
    (asked(splits=1), asked(splits=True)),
    (asked(window=(1, 0)), asked(window=(True, False))),
    (asked(window=(1, 0)), asked(window=(1.0, 0))),
]


@pytest.mark.parametrize(("first", "second"), EQUAL)
def test_numbers_of_another_type_are_another_call(first, second):
    assert first == second and recognition_of(call(), first).accepts(call(), first)
    assert not recognition_of(call(), first).accepts(call(), second)
    assert recognition_of(call(), second) is None


def test_a_transform_mode_or_region_makes_it_another_call():
    made, seen = recognition_of(call(), asked()), {}

    def look(name):
        def inside(x):
            seen[name] = made.accepts(call(q=x), asked()), made.accepts(call(), asked())
            return x

        return inside

    torch.func.vmap(look("vmap"))(Q[None].clone())
    torch.func.functionalize(look("functionalize"))(Q.clone())
    torch.func.jvp(look("jvp"), (Q.clone(),), (Q.clone(),))
    torch.jit.trace(look("trace"), (Q.clone(),), check_trace=False)
    make_fx(look("make_fx"))(Q.clone())
    with forward_ad.dual_level():
        look("dual")(Q.clone())
    with torch.autocast("cpu", dtype=torch.float16):
        look("autocast")(Q.clone())
    with torch._subclasses.FakeTensorMode():
        look("fake")(Q)
    with torch.inference_mode():
        look("inference")(Q.clone())
    assert len(seen) == 9
    assert {name: any(found) for name, found in seen.items() if any(found)} == {}
    assert made.accepts(call(), asked())  # and outside it is the same again


def test_without_torchs_guards_no_call_is_recognised(monkeypatch):
    monkeypatch.setattr(recognition, "TensorGuards", None)
    assert recognition_of(call(), asked()) is None


def test_what_is_no_tensor_is_a_type_error_or_another_call():
    made = recognition_of(GIVEN["pages"], asked())
    for wrong in (
        call(q=None),
        call(q=[1]),
        call(used=[1], table=TABLE),
        call(used=LENGTHS, table="t"),
    ):
        try:
            assert not made.accepts(wrong, asked())
        except (TypeError, AttributeError):
            pass
