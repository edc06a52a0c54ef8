"""One thread for each process of a run: `-n 2` occupies two cores.

A thread of torch that has no work polls until the others of its pool are done. Two workers with two threads each on two
cores therefore take each other's time: the float64 reference of 1000 rows and keys took 1.2 to 2.1 s of a core there,
and takes 0.25 s with one thread. With one thread its bits also do not depend on the machine.
"""

import os

import torch

VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Read by torch and by NumPy's products, when a process that a test starts imports them."""


def one_thread() -> None:
    """For torch here, and for products in all processes started from here. A number that the caller has set stays."""
    if VARIABLES[0] not in os.environ:
        torch.set_num_threads(1)
    for name in VARIABLES:
        os.environ.setdefault(name, "1")
