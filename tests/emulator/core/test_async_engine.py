"""Operations in flight: order inside of a queue, freedom between queues, effects only at completion."""

import pytest

from cute_fa4.emulator.machine.async_engine import AsyncEngine


def test_nothing_happens_before_completion():
    engine, done = AsyncEngine(), []
    engine.submit(lambda: done.append(1), "copy", None)
    assert not done and engine.pending == 1
    engine.complete_oldest()
    assert done == [1] and engine.pending == 0


def test_a_queue_completes_in_order_and_one_head_at_a_time():
    engine, done = AsyncEngine(), []
    for i in range(3):
        engine.submit(lambda i=i: done.append(i), f"mma {i}", None, queue="tensor")
    second = engine.operations()[1]
    with pytest.raises(ValueError, match="head"):
        engine.complete(second)
    while engine.pending:
        (head,) = engine.heads()
        engine.complete(head)
    assert done == [0, 1, 2]


def test_unordered_operations_are_all_heads():
    engine, done = AsyncEngine(), []
    for i in range(3):
        engine.submit(lambda i=i: done.append(i), f"copy {i}", None)
    for head in engine.heads()[::-1]:
        engine.complete(head)
    assert done == [2, 1, 0]


def test_an_action_may_submit():
    engine, done = AsyncEngine(), []
    engine.submit(lambda: engine.submit(lambda: done.append("write"), "write", None), "read", None)
    engine.drain()
    assert done == ["write"]
