"""A call of an attention function as something to plant defects in."""

import warnings
from collections.abc import Callable

import torch

from cute_fa4 import EmulatorWarning, emulator


def executes(call: Callable, out: torch.Tensor, level: str) -> Callable:
    """Subject.run of call(out) -> (out, lse): the bits of both, of a result like `out` that begins as NaN."""

    def execute(edit, mode, seed, budget):
        transform = None if edit is None else lambda name, ptx: edit(ptx)
        using = dict(mode=mode, seed=seed, checks=level, transform=transform)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EmulatorWarning)
            with emulator.use(**using, instruction_budget=budget) as result:
                found, lse = call(torch.full_like(out, float("nan")))
        # Through integers: a NaN equals itself.
        bits = found.view(torch.int16).numpy().tobytes() + lse.view(torch.int32).numpy().tobytes()
        return bits, result.instructions

    return execute
