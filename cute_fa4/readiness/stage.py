"""A stage: one test of the machine, which returns measurements or raises."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from cute_fa4 import EmulatorWarning
from cute_fa4.reference import allowed_error, attention_float64, max_error

CLAIMS = "CUTE_FA4_CLAIMS"


class Wrong(AssertionError):
    """The machine did not behave as documented; the text describes the difference."""


@dataclass(frozen=True)
class Stage:
    """run(context) returns measurements, or raises; any exception fails the stage.

    asks         the question, for the report
    seconds      time limit on a GPU; on the emulator SECONDS_ON_CPU
    environment  of the stage's process
    needs_gpu    it measures time, or something that the emulator lacks
    suspect      where to look first if it fails, hangs or crashes
    """

    name: str
    asks: str
    run: Callable[[Context], dict]
    suspect: str
    seconds: int = 120
    environment: dict = field(default_factory=dict)
    needs_gpu: bool = False


SECONDS_ON_CPU = 300


@dataclass(frozen=True)
class Context:
    """Where the stages run: "cuda", or "cpu" for the emulator, with sizes that take seconds there."""

    device: str

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    def size(self, on_gpu, on_cpu):
        return on_gpu if self.on_gpu else on_cpu

    @property
    def arch(self) -> str:
        from cute_fa4.system.devices import target_of

        return target_of(torch.device("cuda", 0) if self.on_gpu else torch.device(self.device)).arch

    def random(self, *shape, dtype=torch.bfloat16, seed=0) -> torch.Tensor:
        """Normal random numbers, the same on every device."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(*shape, generator=generator).to(self.device, dtype)

    def int32(self, *values) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def synchronize(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()


def require(condition, text: str) -> None:
    """Raises Wrong(text) unless the condition holds."""
    if not bool(condition):
        raise Wrong(text)


def error_of(out, q, k, v, what: str, **options) -> float:
    """Largest |out - float64|; raises Wrong if it exceeds the allowed error. Dense tensors of one batch."""
    exact, _ = attention_float64(q, k, v, **options)
    allowed = allowed_error(q, k, v, **options).out
    error = max_error(out, exact)
    require(error <= allowed, f"{what}: off by {error:.2e} from float64, {allowed:.2e} is allowed")
    return error


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal, with NaN equal to NaN."""
    integers = {2: torch.int16, 4: torch.int32}[a.element_size()]
    return torch.equal(a.view(integers), b.view(integers))


@contextlib.contextmanager
def kernels_with(claims: str):
    """Inside, calls choose kernels with claims ("on"), without ("off"), or by the rule ("auto")."""
    from cute_fa4.calls import repeat
    from cute_fa4.sm100.choose.choose_config import config_for

    def forget():  # the choice is cached for similar calls
        repeat.clear()
        config_for.cache_clear()

    before = os.environ.get(CLAIMS)
    os.environ[CLAIMS] = claims
    forget()
    try:
        yield
    finally:
        if before is None:
            del os.environ[CLAIMS]
        else:
            os.environ[CLAIMS] = before
        forget()


def run(stage: Stage, context: Context) -> dict:
    """Run the stage without the emulator's warning about speed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EmulatorWarning)
        found = stage.run(context)
    context.synchronize()
    return found
