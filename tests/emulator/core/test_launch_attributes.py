"""Launch attributes of compiled host code and of cuda-python: cluster sizes, and unknown ones."""

from types import SimpleNamespace

import pytest

from cute_fa4.emulator.host import driver_api
from cute_fa4.emulator.ptx.errors import EmulatorError


def cluster(grid, *attributes, directives=()):
    """The cluster of a launch with (id, three numbers) each."""
    words = {number: [*sizes, *[0] * 13] for number, sizes in attributes}
    kernel = SimpleNamespace(directives=dict(directives))
    return driver_api.launch_options(words, kernel, grid)["cluster"]


def test_clusters_have_the_size_that_a_launch_always_gets():
    """Attribute 4, not the preferred one (11), which a GPU grants where it has room."""
    assert cluster((8, 2, 1), (4, (2, 1, 1)), (11, (4, 2, 1))) == (2, 1, 1)
    assert cluster((8, 1, 1), (11, (2, 1, 1))) == (1, 1, 1)
    assert cluster((8, 1, 1), directives={".reqnctapercluster": (4,)}.items()) == (4, 1, 1)


@pytest.mark.parametrize(
    "grid, preferred",
    [
        ((8, 1, 1), (3, 1, 1)),
        ((6, 1, 1), (4, 1, 1)),
        ((8, 1, 2), (4, 1, 2)),
        ((8, 1, 1), (0, 1, 1)),
    ],
)
def test_a_preferred_cluster_is_a_multiple_that_divides_the_grid(grid, preferred):
    with pytest.raises(
        EmulatorError, match="preferred clusters of .*accepted: multiples of the cluster"
    ):
        cluster(grid, (4, (2, 1, 1)), (11, preferred))


def test_unknown_attributes_are_named():
    with pytest.raises(EmulatorError, match=r"launch attribute 3 is not known .*4 \(cluster"):
        cluster((8, 1, 1), (3, (0, 0, 0)))
