"""use(): settings of launches inside a context: schedule, checks, edits, names, limits."""

from cute_fa4.emulator.host.driver_api import DEFAULT, Settings
from cute_fa4.emulator.host.driver_api import settings as _settings
from cute_fa4.emulator.run.launch import split_checks


def use(
    mode="in_order",
    seed=0,
    checks=DEFAULT,
    transform=None,
    labels=None,
    instruction_budget=None,
    claims=None,
    cores=1,
):
    """Context in which launches execute with these settings; yields the Run that counts them.

    mode        "in_order": warps in turn, copies complete soon. "together": the same in short turns. "random":
                seeded choices. "hostile": copies, MMAs and remote arrivals complete as late as possible and out of
                order, roles starve one at a time, one CTA of a cluster runs ahead. The same seed replays exactly.
    checks      how strictly accesses must be ordered (see checks/): "ptx", the written rules; "hardware", what
                published kernels rely on; None: not checked. Also names of launch.CHECKS, alone or with a level
                in a tuple. Default: those of the called function.
    transform   function (kernel name, PTX text) -> PTX text, applied before decoding: edits a kernel to see
                which check reports it
    labels      KernelLabels instead of those given to compile
    instruction_budget  warp instructions that one launch may execute; None: no limit
    claims      largest number of clusters that a CTA can claim by cluster launch control; 0: every CTA runs
                its own cluster. None: decided by the mode ("in_order": all; else some, see schedules.py)
    cores       2: the second half of a grid runs concurrently in a forked process, if the checks know that
                neither half accesses what the other writes (second_core.py); results, counts and reports stay the same
    Raises ValueError for unknown checks, for claims below 0 and for other numbers of cores.
    """
    if claims is not None and not (isinstance(claims, int) and claims >= 0):
        raise ValueError(f"claims {claims!r}; accepted are None and integers from 0")
    if cores not in (1, 2):
        raise ValueError(f"cores {cores!r}; accepted are 1 and 2")
    if checks is not DEFAULT:
        split_checks(checks)  # raises for what is not known
    return _settings(
        Settings(mode, seed, checks, transform, labels, instruction_budget, claims, cores)
    )
