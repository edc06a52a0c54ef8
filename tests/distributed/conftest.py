"""One pool of four processes for the whole run of a worker: groups of one to four ranks."""

import pytest

from tests.distributed.pool import Pool


@pytest.fixture(scope="session")
def pool():
    with Pool(4) as processes:
        yield processes


@pytest.fixture(scope="session")
def pool_of_eight():
    with Pool(8) as processes:
        yield processes
