"""Objects left by a test file are excluded from Python's garbage collection.

Compiled functions, decoded kernels and imported modules are millions of objects that live as long as the worker. A
full collection walks all of them, finds nothing, and takes up to a second: 9 % of the time of attention tests. So
after each file the collector runs once over what is new, and what it leaves becomes permanent (gc.freeze).
"""

import gc

import pytest


class CollectorPlugin:
    """Freezes what collecting the tests made, and what each file leaves behind."""

    def pytest_collection_finish(self):
        """Modules of tests and of the package."""
        collect_and_freeze()

    def pytest_unconfigure(self):
        """At the end of the process everything goes, as without this plugin."""
        gc.unfreeze()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item, nextitem):
        """After the last test of a file."""
        result = yield
        if nextitem is None or nextitem.path != item.path:
            collect_and_freeze()
        return result


def collect_and_freeze():
    """Objects that are alive now are permanent."""
    gc.collect()
    gc.freeze()
