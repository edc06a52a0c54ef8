"""Options of the whole suite.

pytest --seeds 4     attention tests under four emulator schedules instead of two
pytest -m sweep      the full products of which plain pytest runs pairs (tests/suite/sweep.py): --shard, --resume
pytest --gpu         also what needs a GPU; attention runs on it where it has compute capability 10
"""

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests.suite.collector import CollectorPlugin
from tests.suite.costs import CostsPlugin
from tests.suite.kernels import KernelsPlugin
from tests.suite.sweep import SweepPlugin, add_options
from tests.suite.tracing import forget_contexts, remember_places

# How long an example takes, or its drawing, says how busy the machine is: no test asks for it.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


def pytest_addoption(parser):
    parser.addoption(
        "--seeds",
        type=int,
        default=2,
        metavar="N",
        help="run attention tests under N emulator schedules: in order, hostile, then random seeds",
    )
    add_options(parser)
    parser.addoption("--gpu", action="store_true", help="also run the tests marked gpu")


def pytest_configure(config):
    config.pluginmanager.register(CostsPlugin())
    config.pluginmanager.register(CollectorPlugin())
    remember_places()
    forget_contexts()
    config.pluginmanager.register(SweepPlugin(config))
    config.pluginmanager.register(KernelsPlugin(getattr(config, "workerinput", {}).get("kernels")))
    if config.getoption("--seeds") < 1:
        raise pytest.UsageError(f"--seeds {config.getoption('--seeds')}; accepted: 1 or more")
    if config.getoption("--gpu") and not torch.cuda.is_available():
        raise pytest.UsageError("--gpu: torch finds no CUDA device; run without --gpu")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--gpu"):
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a GPU: run with --gpu"))


@pytest.fixture(autouse=True)
def no_plans():
    """Tests replace what a plan would remember: compiled functions, devices, checks."""
    from cute_fa4.calls import repeat

    repeat.clear()


@pytest.fixture(autouse=True)
def fixed_torch_seed():
    """Tests that draw from torch's global generator draw the same numbers in any order of tests."""
    torch.manual_seed(0)
