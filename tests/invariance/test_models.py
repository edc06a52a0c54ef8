"""Logits of a model do not depend on the schedule: the law of docs/invariance.md where it is used.

Plain pytest: 126 tokens and 3, of which the longer sequence crosses the first key tile while it decodes; windows of 16
and sinks. The sweep: 200 new tokens in 20 schedules.
"""

import random

import pytest
import torch

pytest.importorskip("transformers")

from tests.invariance.schedules import Server

LLAMA, GPT_OSS = "llama", "gpt-oss, sinks, windows and none"
DEEPSEEK = "deepseek v3, 96/64"  # head dims of q and k, and of v


def prompts(*lengths: int) -> list[list[int]]:
    dice = random.Random(0)
    return [[dice.randrange(1, 96) for _ in range(n)] for n in lengths]


def check(name: str, lengths: tuple[int, ...], new: int, schedules: range) -> None:
    server = Server(name, batch_invariant=True)
    alone = server.generate(prompts(*lengths), new, None)
    for seed in schedules:
        found = server.generate(prompts(*lengths), new, random.Random(seed))
        for one, other in zip(alone, found, strict=True):
            assert one.tokens == other.tokens
            assert torch.stack(one.logits).equal(torch.stack(other.logits)), f"schedule {seed}"


def test_no_schedule_changes_a_bit_of_the_logits():
    check(GPT_OSS, (126, 3), new=4, schedules=range(2))


@pytest.mark.sweep
@pytest.mark.parametrize("first", range(0, 20, 2))  # two schedules take minutes
@pytest.mark.parametrize("name", [LLAMA, GPT_OSS, DEEPSEEK])
def test_no_schedule_changes_a_bit_of_long_texts(name, first):
    check(name, (126, 3, 40), new=200, schedules=range(first, first + 2))


@pytest.mark.sweep
def test_without_the_argument_bits_change():
    """So that the law says something: chunks of up to 32 rows get another kernel by default."""
    server = Server(GPT_OSS, batch_invariant=False)
    alone, found = (server.generate(prompts(126, 3), 4, dice) for dice in (None, random.Random(0)))
    assert not torch.stack(alone[0].logits).equal(torch.stack(found[0].logits))
