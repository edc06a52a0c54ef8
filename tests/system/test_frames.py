"""Functions with room: no call at any depth maps memory for its frame."""

import inspect
import resource
import sys

import pytest

from cute_fa4.system.frames import with_room

# A chunk of 16 KB, 2048 slots, holds about 130 frames of at_depth: two of these depths or more are the end of one.
DEPTHS = range(400)
CALLS = 100


def leaf(a=1, b=2, c=3):
    """Its frame is as large as that of at_depth, so that none of the depths leaves room for it alone."""
    return [a, b, c, a + b, a * c]


def at_depth(depth: int) -> int:
    """Page faults of CALLS calls that are made so many calls further down."""
    if depth:
        return at_depth(depth - 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(CALLS):
        leaf()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def most_faults() -> int:
    """At the worst depth."""
    at_depth(DEPTHS[-1])  # touches for the first time what is not mapped again
    return max(map(at_depth, DEPTHS))


@pytest.mark.skipif(sys.platform != "linux", reason="counts page faults")
def test_no_loop_of_calls_maps_memory_for_its_frames():
    assert with_room(most_faults)() < CALLS
    if (3, 11) <= sys.version_info < (3, 14):  # the reason for all this, where it is known
        assert most_faults() >= CALLS


def test_a_function_with_room_is_the_function():
    @with_room
    def total(first, *rest, scale=1):
        """Its message."""
        return scale * (first + sum(rest))

    assert total(1, 2, scale=3) == 9 and total.__doc__ == "Its message."
    assert list(inspect.signature(total).parameters) == ["first", "rest", "scale"]
    with pytest.raises(ZeroDivisionError):
        with_room(lambda: 1 / 0)()
