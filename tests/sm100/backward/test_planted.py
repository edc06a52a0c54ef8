"""Planted defects of the backward kernels: each fence, wait or arrival that is deleted from their PTX is noticed."""

import re

import pytest

from cute_fa4 import emulator
from cute_fa4.emulator import EmulatorError
from tests.emulator.mutations.quick import quick_or_sweep
from tests.sm100.backward.problems import Problem, run

# Three tiles of both sides and two heads: slots of the ring are used again, tiles are cut and whole.
PROBLEM = Problem(300, 290, heads=(2, 1), window=(None, 0))
DEFECTS = {
    "tensor memory is read before a barrier orders it": r"tcgen05\.fence::after_thread_sync;",
    "a barrier is raised before tensor memory was read or written": r"tcgen05\.fence::before_thread_sync;",
    "P or dS is announced before it is stored": r"tcgen05\.wait::st\.sync\.aligned;",
    "S, dP or a result is used before it has come": r"tcgen05\.wait::ld\.sync\.aligned;",
    "TMA stores what it may not see yet": r"fence\.proxy\.async\.shared::cta;",
    "a product, a slot or a sum is never announced": r"@\S+ tcgen05\.commit[^;]*;",
    "a CTA ends before its stores have read": r"cp\.async\.bulk\.wait_group\.read\s+0;",
    "mbarriers are used before their set-up is seen": r"fence\.mbarrier_init[^;]*;",
    "threads do not meet": r"\bbar\.sync[^;]*;",
    "an mbarrier misses its arrivals": r"mbarrier\.arrive(?!\.expect)[^;]*;",
    "an mbarrier is not awaited": r"LAB_WAIT:(?:(?!DONE:)[\s\S])*?bra\.uni\s+LAB_WAIT;",
}
# How many change nothing here: the compute warps of dkv, over cut and over whole tiles, await the numbers of a slot,
# and then S, which is made of the tile that comes on the same mbarrier.
EQUIVALENT = {"an mbarrier is not awaited": 2}


def planted(pattern: str, number: int):
    """A transform that deletes the match of this number; .count is how many there are."""

    def transform(name, ptx):
        places = list(re.finditer(pattern, ptx))
        transform.count = len(places)
        if number >= len(places):
            return ptx
        place = places[number]
        return ptx[: place.start()] + ptx[place.end() :]

    transform.count = 0
    return transform


@pytest.mark.parametrize("defect", quick_or_sweep(DEFECTS))
def test_every_one_is_noticed(defect):
    tensors = PROBLEM.tensors()
    number, missed = 0, []
    while True:
        transform = planted(DEFECTS[defect], number)
        try:
            with emulator.use(transform=transform, instruction_budget=3_000_000):
                run(*tensors, PROBLEM.window)
            if number < transform.count:
                missed.append(number)
        except EmulatorError:
            pass
        number += 1
        if number >= transform.count:
            break
    assert number > 1 and len(missed) == EQUIVALENT.get(defect, 0), missed
