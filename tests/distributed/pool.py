"""Processes that run many cases: started once, forked from a server that has imported torch, each with a rank in gloo.

    with Pool(4) as pool:
        pool.run(function, arguments, ranks=3)    [function(rank, group, *arguments) of ranks 0, 1, 2]

A group for each number of ranks is made when the processes start. An exception of a function is returned as a Failed.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import traceback
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

PATIENCE_S = 240


@dataclass(frozen=True)
class Failed:
    """An exception of a process: its class's name, its text, and where it came from."""

    kind: str
    text: str
    trace: str


def _serve(rank: int, size: int, store: str, timeout_s: float, pipe) -> None:
    import warnings

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout_s),
    )
    groups = {n: dist.new_group(range(n)) for n in range(1, size)} | {size: dist.group.WORLD}
    pipe.send("ready")
    while True:
        try:
            function, ranks, arguments = pipe.recv()
        except EOFError:
            return
        try:
            result = function(rank, groups[ranks], *arguments)
        except Exception as error:
            result = Failed(type(error).__name__, str(error), traceback.format_exc())
        pipe.send(result)


class Pool:
    def __init__(self, size: int, timeout_s: float = 60):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(
            ["cute_fa4.distributed", "tests.distributed.cases", "tests.distributed.dtensors"]
        )
        self._folder = tempfile.TemporaryDirectory()
        store = str(Path(self._folder.name) / "store")
        self.pipes, self.processes = [], []
        for rank in range(size):
            mine, its = context.Pipe()
            process = context.Process(
                target=_serve, args=(rank, size, store, timeout_s, its), daemon=True
            )
            process.start()
            its.close()
            self.pipes.append(mine)
            self.processes.append(process)
        for rank in range(size):
            assert self._answer(rank) == "ready"

    def run(
        self, function, arguments: tuple = (), ranks: int | None = None, dead: tuple = ()
    ) -> list:
        """The result of each rank, or Failed. dead: ranks that exit instead of answering."""
        ranks = ranks or len(self.pipes)
        for pipe in self.pipes[:ranks]:
            pipe.send((function, ranks, arguments))
        return [None if rank in dead else self._answer(rank) for rank in range(ranks)]

    def _answer(self, rank: int):
        if not self.pipes[rank].poll(PATIENCE_S):
            raise TimeoutError(f"rank {rank} says nothing for {PATIENCE_S} s")
        return self.pipes[rank].recv()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.join(5)
            if process.is_alive():
                process.kill()
        self._folder.cleanup()
