"""`check --load` of kernels over latent caches: each form of a cache is tried, and a wrong kernel is seen."""

import pytest

from cute_fa4.commands import trials
from cute_fa4.compiler import functions
from cute_fa4.compiler.compiler import compile_function
from cute_fa4.sm100.choose.choose_config import choose_config
from tests.suite import turns

# 16 heads: one query fills the smallest tile, so a compile and a run are short.
LATENT = dict(
    qkv_dtype="bf16", head_dim=576, head_dim_v=512, group=16, pack_gqa=True, latent=True, kv_layout="paged",
    page_size=64, seqused_k=True, write_lse=True, rows=16,
)  # fmt: skip
LISTED = dict(page_size=1, causal=False)
ROWS = dict(kv_dtype="e4m3", rope_dtype="bf16", scale_dtype="f32")
V4 = dict(kv_dtype="e4m3", rope_dtype="bf16", scale_dtype="e8m0", head_dim=512)
FORMS = {
    "pages, a sink": dict(sink=True, causal=True),
    "three queries": dict(causal=True, rows=64),
    "keys by index, with the largest score": LISTED | dict(write_max=True),
    "rows of 656 bytes": ROWS | dict(causal=True),
    "rows of 656 bytes by index": ROWS | LISTED,
    "rows of 584 bytes": V4 | dict(page_size=1, causal=True),
    "rows of 584 bytes by index, a sink": V4 | LISTED | dict(sink=True, sink_dtype="bf16"),
    "values alone": dict(head_dim=512),
    "8 bits": dict(qkv_dtype="e4m3", descales="qkv", causal=True),
    "8 bits with scales of rows under q of 16": dict(kv_dtype="e4m3", descales="KV"),
}  # fmt: skip
PARTS = slice(3, 5)  # out and the log-sum-exp, of the arguments of a launch


@pytest.fixture
def nothing_loaded(monkeypatch):
    monkeypatch.setattr(functions, "_functions", {})
    monkeypatch.setattr(functions, "_registered", {})


@pytest.mark.parametrize("form", turns.by_turns(FORMS))
def test_a_latent_kernel_is_tried_and_a_wrong_one_is_seen(form, nothing_loaded):
    """Stand-ins for the kernel: it does not write; it does, and one row of out, or of the log-sum-exp, is off."""
    config = choose_config(**LATENT | FORMS[form])
    kernel = compile_function(config, "emulator")

    def verdict(function):
        functions.clear()
        functions.register(config, "emulator", lambda: function)
        return trials.verdict(config, "cpu", "emulator")

    def changed(which: int):
        def run(*given):
            kernel(*given)
            given[PARTS][which][1, ..., -1:, :].add_(0.25)

        return run

    right = verdict(kernel)
    assert right.good and not right.not_tried, str(right)
    assert 0 < right.error < right.allowed
    for function in (lambda *given: None, changed(0), changed(1)):
        wrong = verdict(function)
        assert not wrong.good and "WRONG" in str(wrong), str(wrong)


@pytest.mark.parametrize("function", ["zeros", "raises"])
def test_stand_ins_of_other_trials(function, nothing_loaded):
    config = choose_config(**LATENT | FORMS["pages, a sink"])

    def zeros(*given):
        for tensor in given[PARTS]:
            tensor.zero_()

    def raises(*given):
        raise RuntimeError("no such launch")

    functions.register(config, "emulator", lambda: dict(zeros=zeros, raises=raises)[function])
    found = trials.verdict(config, "cpu", "emulator")
    assert not found.good and not found.not_tried
    assert str(found).endswith("WRONG" if function == "zeros" else "no such launch")


def test_a_kernel_that_no_call_asks_for_says_so(nothing_loaded):
    """By default a call of three queries of 16 heads has a tile of 64 rows, and none of 16."""
    config = choose_config(**LATENT | dict(group=24, rows=16, causal=True))
    functions.register(config, "emulator", lambda: None)
    assert "no number of queries of 24 heads" in trials.verdict(config, "cpu", "emulator").not_tried
