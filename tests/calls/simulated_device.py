"""A device that runs launches later, in their order; host threads that take turns; and torch's allocator over it.

Device         streams, captures, and memory: a block that a tensor leaves goes to the next allocation of its size
               in the same pool, at once, as torch's caching allocator has it. A stream has a pool, so has a capture
side_by_side   an order in which streams, or replays of graphs, run at the same time
Turns          threads of which one runs at a time; at every launch and allocation the next one is drawn, because
               the interpreter's lock may change hands there
kernels_of     stand-ins for compiled kernels: attention writes a number of q into the partial results, the merge
               reads it back into out
"""

from __future__ import annotations

import math
import random
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable
from contextlib import contextmanager
from math import prod

import torch

from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.combine.config import CombineConfig


class Turns:
    """Threads that take turns, in an order drawn from a seed."""

    def __init__(self, seed: int):
        self.random, self.changed = random.Random(seed), threading.Condition()
        self.ready: list[int] = []
        self.running = None

    def run(self, *functions: Callable) -> list:
        """The results of the functions, each called in a separate thread; raises their errors."""
        results, errors = [None] * len(functions), []

        def thread(n: int) -> None:
            try:
                self._wait(n)
                results[n] = functions[n]()
            except BaseException as error:  # of a thread: raised by the caller
                errors.append(error)
            finally:
                with self.changed:
                    self.ready.remove(n)
                    self._draw()

        threads = [threading.Thread(target=thread, args=(n,)) for n in range(len(functions))]
        self.names = {}
        self.ready = list(range(len(functions)))
        for n, each in enumerate(threads):
            each.start()
            self.names[each.ident] = n
        with self.changed:
            self._draw()
        for each in threads:
            each.join(60)
        if errors:
            raise errors[0]
        return results

    def pass_on(self) -> None:
        """Another thread may go on here; who is no thread of these does."""
        n = getattr(self, "names", {}).get(threading.get_ident())
        if n is not None:
            with self.changed:
                self._draw()
            self._wait(n)

    def _draw(self) -> None:
        self.running = self.random.choice(self.ready) if self.ready else None
        self.changed.notify_all()

    def _wait(self, n: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.running == n, 60), "no turn for a minute"


def side_by_side(streams: list[list[Callable]], seed: int) -> None:
    """Run the launches of streams, or of graphs that are replayed on streams of their own: each in its order."""
    draw, left = random.Random(seed), [list(launches) for launches in streams]
    while any(left):
        draw.choice([launches for launches in left if launches]).pop(0)()


class Device:
    """Launches of one stream run in their order, after the host has enqueued all of them."""

    def __init__(self, turns: Turns):
        self.turns, self.stream = turns, "default"
        self.launches = defaultdict(list)
        self.free = defaultdict(list)

    @contextmanager
    def on(self, stream: str):
        """torch.cuda.stream"""
        before, self.stream = self.stream, stream
        yield
        self.stream = before

    @contextmanager
    def capturing(self):
        """torch.cuda.graph: its records, and a separate pool"""
        name = f"capture {len(self.launches)}"
        with self.on(name):
            yield self.launches[name]

    def enqueue(self, launch: Callable) -> None:
        self.turns.pass_on()
        self.launches[self.stream].append(launch)
        self.turns.pass_on()

    def synchronize(self) -> None:
        """Every stream separately."""
        for launches in self.launches.values():
            for launch in launches:
                launch()
            launches.clear()

    def allocated(self, shape: tuple, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """In the place of cute_fa4.calls.split_keys.workspace._allocated."""
        self.turns.pass_on()
        size = prod(shape) * dtype.itemsize
        blocks = self.free[self.stream, size]
        block = blocks.pop() if blocks else torch.empty(size, dtype=torch.uint8)
        tensor = block.view(dtype).view(shape)
        weakref.finalize(tensor, blocks.append, block)
        return tensor


def full_of_nan(shape, dtype, device):
    """In the same place: what is not written must not be read."""
    return torch.full(shape, math.nan, device=device).view(dtype)


def kernels_of(device: Device) -> Callable:
    """In the place of cute_fa4.calls.launch.function_for."""

    def attention(q, k, v, out, *_rest):
        q, out = (x.detach() for x in (q, out))  # memory: the tensors of the host may be gone
        device.enqueue(lambda: out.fill_(q.flatten()[0].item()))

    def merge(partial_o, partial_lse, parts, out, *_rest):
        partial_o, out = (x.detach() for x in (partial_o, out))
        device.enqueue(lambda: out.fill_(partial_o.flatten()[0].item()))

    def append(*_tensors):
        device.enqueue(lambda: None)

    kernels = {FA4Config: attention, CombineConfig: merge}
    return lambda config, target: kernels.get(type(config), append)
