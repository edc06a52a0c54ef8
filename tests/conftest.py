"""Options of the whole suite.

pytest --seeds 4     attention tests under four emulator schedules instead of two
pytest -m sweep      the full products of which plain pytest runs pairs (tests/suite/sweep.py): --shard, --resume
pytest --cold        without the kernels that earlier runs of these sources have compiled (tests/suite/kernels.py)
pytest --plant-only  whether planted defects fit the sources, without a compile (tests/suite/planting.py)
pytest --turn N      the part of rotating lists (planted defects) that the N-th commit runs (tests/suite/turns.py)
pytest --all-turns   expensive tests in full, of which a run of the whole suite takes a part (tests/suite/rotation.py)
pytest --since REV   the tests that the changes since a commit can reach (tests/suite/since.py)
pytest --gpu         also what needs a GPU; attention runs on it where it has compute capability 10
"""

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests.suite import rotation, turns
from tests.suite.collector import CollectorPlugin
from tests.suite.cores import one_thread
from tests.suite.costs import CostsPlugin
from tests.suite.kernels import KernelsPlugin
from tests.suite.planting import PlantingPlugin
from tests.suite.since import SincePlugin
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
    rotation.add_options(parser)
    parser.addoption(
        "--cold", action="store_true", help="compile every kernel, also those of earlier runs"
    )
    parser.addoption(
        "--plant-only",
        action="store_true",
        help="only whether defects planted in sources still fit them, without a compile",
    )
    parser.addoption(
        "--turn", type=int, metavar="N", help="plant the defects that the N-th commit plants"
    )
    parser.addoption(
        "--since", metavar="REV", help="run the tests that the changes since a commit can reach"
    )
    parser.addoption("--gpu", action="store_true", help="also run the tests marked gpu")


def pytest_configure(config):
    one_thread()
    config.pluginmanager.register(CostsPlugin())
    config.pluginmanager.register(CollectorPlugin())
    if config.getoption("--turn") is None:
        config.option.turn = turns.of_commit()  # the workers' too
    turns.chosen = config.getoption("--turn")
    remember_places()
    forget_contexts()
    if config.getoption("--plant-only"):
        config.pluginmanager.register(PlantingPlugin(config))
    config.pluginmanager.register(SweepPlugin(config))
    config.pluginmanager.register(rotation.RotationPlugin(config))
    if config.getoption("--since"):
        config.pluginmanager.register(SincePlugin(config.getoption("--since")))
    kernels = KernelsPlugin(
        getattr(config, "workerinput", {}).get("kernels"), config.getoption("--cold")
    )
    kernels.plant_only = config.getoption("--plant-only")
    config.pluginmanager.register(kernels)
    if config.getoption("--seeds") < 1:
        raise pytest.UsageError(f"--seeds {config.getoption('--seeds')}; accepted: 1 or more")
    if config.getoption("--gpu") and not torch.cuda.is_available():
        raise pytest.UsageError("--gpu: torch finds no CUDA device; run without --gpu")


def pytest_report_header():
    return turns.header()


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
