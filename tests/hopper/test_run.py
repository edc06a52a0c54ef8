"""`hopper check` as a whole: what becomes of a problem that fails."""

import pytest

from cute_fa4.compiler.policy import JitError
from cute_fa4.hopper import calls, run
from cute_fa4.hopper.variant import Variant, dense


def test_a_kernel_that_was_not_built_fails_its_own_problem_alone(monkeypatch):
    """The GPU's context is whole: the other problems of the variant are still run."""
    asked = []

    def call(variant, problem, device, **_):
        asked.append(problem)
        raise JitError("no kernel mha2q_missing")

    monkeypatch.setattr(calls, "call", call)
    result, used = {"rows": [], "failures": []}, run.Used()
    run.variant_step(Variant(64), [dense(1, 3, 5), dense(1, 4, 5)], used)(result)
    assert len(asked) == 2 and result["rows"] == []
    assert all("no kernel mha2q_missing" in text for text in result["failures"])
    assert not any("context is lost" in text for text in result["failures"])


def test_an_error_of_the_gpu_ends_the_run(monkeypatch):
    def call(*_, **__):
        raise RuntimeError("CUDA error: an illegal instruction")

    monkeypatch.setattr(calls, "call", call)
    with pytest.raises(RuntimeError, match="illegal instruction"):
        run.variant_step(Variant(64), [dense(1, 3, 5)], run.Used())({"rows": [], "failures": []})
