"""Driver queries about clusters, and the use of their answers, with a recording stand-in for the driver."""

import pytest
import torch

from cute_fa4.calls.split_keys.split import cluster_parts
from cute_fa4.system import clusters


class Driver:
    """Every call succeeds but the one that `fails`; a module counts while it is loaded."""

    def __init__(self, fails=None, answer=14):
        self.fails, self.answer, self.mode, self.modules = fails, answer, 0, 0
        self.asked = None

    def __getattr__(self, name):
        def call(*arguments):
            if name == self.fails:
                return 1
            if name == "cuThreadExchangeStreamCaptureMode":
                given = arguments[0]._obj
                self.mode, given.value = given.value, self.mode
            elif name == "cuModuleLoadData":
                assert self.mode == clusters._RELAXED, "a capture of this thread would end here"
                self.modules += 1
            elif name == "cuModuleUnload":
                self.modules -= 1
            elif name == "cuDeviceGetAttribute":
                arguments[0]._obj.value = 232448
            elif name == "cuOccupancyMaxActiveClusters":
                config = arguments[2]._obj
                attribute = config.attributes[0]
                self.asked = attribute.id, *attribute.value[:3], config.shared, config.number
                arguments[0]._obj.value = self.answer
            return 0

        return call


def test_the_question_is_for_one_cta_an_sm_and_is_allowed_in_a_capture():
    driver = Driver()
    assert clusters._asked(driver, 0, 8) == 14
    assert driver.asked == (4, 8, 1, 1, 232448, 1)
    assert (driver.mode, driver.modules) == (0, 0), "as before the question"


@pytest.mark.parametrize(
    "fails", ["cuModuleLoadData", "cuFuncSetAttribute", "cuOccupancyMaxActiveClusters"]
)
def test_a_driver_that_refuses_leaves_nothing_after(fails):
    driver = Driver(fails)
    with pytest.raises(RuntimeError, match=fails):
        clusters._asked(driver, 0, 8)
    assert (driver.mode, driver.modules) == (0, 0)


def test_a_call_takes_no_more_clusters_than_the_device_runs(monkeypatch):
    """Blocks of 2,048 keys. 14 clusters of eight: the fifteenth would wait for one of them to end."""
    most = {2: 66, 4: 30, 8: 14}
    monkeypatch.setattr(clusters, "asked_of_driver", lambda index, ctas: most[ctas])
    device = torch.device("cuda", 0)
    found = [cluster_parts(blocks, 2048, 148, device) for blocks in (14, 15, 30, 31)]
    assert found == [8, 4, 4, 2]
    monkeypatch.setattr(clusters, "asked_of_driver", lambda index, ctas: None)
    assert clusters.most_clusters(device, 8, 148) == 16, "the share that clusters surely fill"
