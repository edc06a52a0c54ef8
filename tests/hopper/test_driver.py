"""Cases of `hopper driver`, as far as a machine without a GPU can tell."""

import inspect

from cute_fa4.hopper.driver_calls import Append, configs
from cute_fa4.hopper.driver_cases import CASES
from cute_fa4.sm100.append.kernel import AppendKernel


def test_cases_have_names_of_their_own():
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)


def test_every_way_to_call_gives_an_argument_for_each_parameter():
    """The exported function has the kernel's parameters except the stream, which comes from its environment."""
    parameters = list(inspect.signature(AppendKernel.__call__).parameters)[1:-1]
    assert parameters[-3:] == ["batch", "cache_batch_idx", "descales"]
    for paged, config in zip((True, False), configs(), strict=False):
        arguments = dict(zip(parameters, Append("cpu", paged).arguments(), strict=True))
        assert (arguments["page_table"] is not None) == bool(config.page_size)
