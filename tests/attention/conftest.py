"""Fixtures of the attention tests: on which device and under which schedule they run."""

from functools import partial

import pytest
import torch

from tests.attention import agreement


def pytest_generate_tests(metafunc):
    if "schedule" in metafunc.fixturenames:
        schedules = agreement.schedules(metafunc.config.getoption("--seeds"))
        metafunc.parametrize("schedule", schedules, ids=str, scope="session")


@pytest.fixture(scope="session")
def device(request) -> str:
    """ "cuda" with --gpu on a device that runs sm_100a code, else the CPU and so the emulator."""
    if request.config.getoption("--gpu") and torch.cuda.get_device_capability()[0] == 10:
        return "cuda"
    return "cpu"


@pytest.fixture
def agrees(device, schedule):
    """agrees(case): the kernel's result and LSE are as close to float64 as agreement.py allows."""
    return partial(agreement.assert_agrees, device=device, schedule=schedule)


@pytest.fixture
def attention(schedule):
    """flash_attn_func under the schedule of this test."""
    return partial(agreement.attention, schedule=schedule)
