"""Places in the sources are looked up once, and are the right ones."""

import sys

from tests.suite.tracing import once_for_a_code, once_for_a_context, once_for_a_place


def test_a_place_is_looked_up_once_and_lines_are_told_apart():
    calls = []

    def line_of(frame):
        calls.append(frame)
        return frame.f_lineno

    remembered = once_for_a_place(line_of)
    here = sys._getframe().f_lineno
    lines = {(remembered(sys._getframe()), remembered(sys._getframe())) for _ in range(3)}
    assert lines == {(here + 1, here + 1)} and len(calls) == 2


def test_a_code_object_is_looked_up_once_wherever_it_is():
    calls = []
    remembered = once_for_a_code(lambda frame: calls.append(frame) or len(calls))
    other = lambda: remembered(sys._getframe())
    assert [remembered(sys._getframe()), remembered(sys._getframe()), other(), other()] == [
        1,
        1,
        2,
        2,
    ]


def test_what_is_made_of_a_place_is_made_once_in_a_context_and_again_in_the_next():
    made, contexts, place = [], ["first"], ("file.py", 1)
    remembered = once_for_a_context(
        lambda answer: made.append(answer) or len(made), lambda: contexts[-1]
    )
    assert [remembered(place), remembered(place), remembered(("file.py", 2))] == [1, 1, 2]
    contexts.append("second")
    assert remembered(place) == 3
    remembered.cache_clear()
    assert remembered(place) == 4 and made[0] is place


def test_the_compiler_uses_it():
    """The names still exist in the DSL that is installed; without them kernels would compile a fifth slower."""
    from cutlass._mlir_helpers import arith, op
    from cutlass.base_dsl.typing import Numeric

    for remembered in (arith.is_scalar, arith.element_type, Numeric.from_mlir_type):
        assert hasattr(remembered, "cache_info")
    assert hasattr(op._is_framework_stack_frame, "__wrapped__")
    assert hasattr(op._fast_frameinfo, "__wrapped__")
    assert hasattr(op._get_location_from_frame_info, "cache_clear")


def test_no_context_outlives_its_compile():
    """Two more kernels, and no more contexts than before."""
    import gc

    from cutlass._mlir import ir

    from cute_fa4 import compile_cache
    from cute_fa4.sm100.append.config import AppendConfig

    before = ir.Context._get_live_count()
    for head_dim in (8, 16):
        compile_cache.function_for(AppendConfig("fp16", head_dim, head_dim), "emulator")
    gc.collect()
    assert ir.Context._get_live_count() <= max(before, 1)
