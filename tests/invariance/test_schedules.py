"""The kernels of a batch-invariant call compute in one way, whatever it returns and wherever its keys are.

Storage, the LSE and parts of the keys each take another kernel. All choices that change a bit must be the same.
"""

from dataclasses import fields
from itertools import groupby

from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.choose.launches import every_launch
from tests.sm100.choose.test_reach import configs_of, problems

# Choices of a schedule that change no bit: where tiles and warps run, and when. row_sum says what an order computes.
SCHEDULING = {"claims", "dependent_launch", "warps", "own_parts", "one_query_tile", "order"}
# Fields of a problem that say where its tensors are.
STORAGE = {"q_layout", "kv_layout", "page_size", "seqused_k"}


def arithmetic(config: FA4Config) -> dict:
    """Every choice of the schedule that may change a bit of a row."""
    schedule = config.schedule
    names = {field.name for field in fields(schedule)} - SCHEDULING
    return {name: getattr(schedule, name) for name in names} | {"family": schedule.family}


def attention_kernels(problem: dict):
    """The kernels of invariant calls that ask this, with and without an LSE, in each cut of the keys."""
    for config in configs_of(problem, invariant=True):
        yield from (kernel for kernel in every_launch(config) if isinstance(kernel, FA4Config))


def apart_from_storage(problem: dict) -> str:
    return repr(sorted((name, said) for name, said in problem.items() if name not in STORAGE))


def test_no_storage_result_or_cut_changes_the_arithmetic():
    groups = groupby(sorted(problems(), key=apart_from_storage), key=apart_from_storage)
    compared = 0
    for shown, group in groups:
        found = [arithmetic(config) for problem in group for config in attention_kernels(problem)]
        compared += max(0, len(found) - 1)  # no kernel has some of them
        assert all(one == found[0] for one in found), (shown, found)
    assert compared > 100
