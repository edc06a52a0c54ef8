"""Processes of a run take one core each."""

import os
import subprocess
import sys

import torch

from tests.suite import cores


def test_products_here_and_in_processes_of_tests_have_the_threads_that_the_variables_say():
    """One, unless the caller of pytest has set another number."""
    said = int(os.environ["OMP_NUM_THREADS"])
    child = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.get_num_threads())"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert torch.get_num_threads() == said == int(child.stdout)


def test_a_number_that_the_caller_has_set_stays(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    cores.one_thread()
    assert [os.environ[name] for name in cores.VARIABLES] == ["3", "1"]
    assert torch.get_num_threads() == before
