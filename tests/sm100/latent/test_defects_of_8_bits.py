"""Planted defects of latent caches of eight bits: what crosses between roles.

Waits, fences and arrivals are those of 16 bits (defects.py, ../latent/pair/defects.py), planted in the kernels of
eight: the ring has slabs of half the bytes, and P a separate place. The subject: two sequences of one query whose
scales differ. Pairs have 19 slots and three of rotary columns: four key tiles, so that each is used again.
"""

from dataclasses import replace
from functools import cache

import pytest
import torch

from tests.emulator.mutations import attention_places
from tests.emulator.mutations.attention_call import executes
from tests.emulator.mutations.everything import LEVEL
from tests.emulator.mutations.mutant import Mutant, Subject, assert_caught
from tests.emulator.mutations.quick import quick_or_sweep
from tests.sm100.latent import defects
from tests.sm100.latent.latent_batches import call_of, config_of, draw, stored
from tests.sm100.latent.pair import defects as of_pairs

ALONE, PAIR = "latent_8_bits", "latent_pair_8_bits"
HEADS, KEYS = {ALONE: 64, PAIR: 128}, {ALONE: 300, PAIR: 500}
FAMILIES = {ALONE: "mla_decode", PAIR: "mla_pair"}
for _name, _heads in HEADS.items():
    _model = dict(heads_q=_heads, dtype="e4m3", descales="qkv", calls=("latent",))
    _config = config_of(FAMILIES[_name], **_model)
    attention_places.KNOWN[_config.name] = _config
SPREAD = 4.0  # of the queries


@cache
def subject(name) -> Subject:
    call = stored(draw(1, [KEYS[name]] * 2, heads=HEADS[name]), 64)
    sized = (call["q"] * SPREAD, call["k_cache"])
    q, cache = (x.to(torch.float8_e4m3fn) for x in sized)
    scales = dict(descale_q=torch.tensor([1.0, 0.5]), descale_k=torch.tensor([1.0, 2.0]))
    call = call | dict(q=q, k_cache=cache) | scales

    def of(out):
        return call_of(call, num_splits=1, out=out)

    like = torch.empty((*q.shape[:-1], 512), dtype=torch.bfloat16)
    return Subject(name, executes(of, like, LEVEL))


def planted_again(mutants, name: str) -> list[Mutant]:
    """The same in another kernel; names say in which."""
    again = (replace(m, name=f"{name}: {m.name}", subject=name) for m in mutants)
    return [m for m in again if not m.equivalent and m.name not in NO_DEFECT]


NO_DEFECT = {
    # With nine slots it takes the place of a tile's last slab; the rotary columns before it have waited for S of the
    # tile after that one, whose commit follows V P of all slabs.
    f"{ALONE}: load does not wait for kv_empty before the first slab",
    # The units of K before it have waited for V P of the tile that had its RoPE columns there.
    f"{PAIR}: load does not wait for rope_empty",
}
PLACES = {
    **of_pairs.PLACES,
    of_pairs.WAIT: 60,
}  # the ring has more slots, which load awaits at the end
MUTANTS = [
    *planted_again(defects.waits(), ALONE),
    *planted_again(defects.order(), ALONE),
    *planted_again(of_pairs.among(PLACES, of_pairs.waits()), PAIR),
    *planted_again(of_pairs.among(PLACES, of_pairs.arrivals()), PAIR),
    *planted_again(of_pairs.among(PLACES, of_pairs.commits()), PAIR),
    *planted_again(of_pairs.among(PLACES, of_pairs.order()), PAIR),
]


@pytest.mark.parametrize("mutant", quick_or_sweep(MUTANTS))
def test_a_defect_is_caught_by_a_check_meant_for_it(mutant):
    assert_caught(mutant, subject(mutant.subject))


@pytest.mark.sweep
@pytest.mark.parametrize("name", HEADS)
def test_the_unchanged_kernels_are_clean_under_every_schedule(name):
    subject(name).expected()


def test_there_are_enough_defects():
    """What docs/verification.md says."""
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 80
