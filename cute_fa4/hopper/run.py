"""Runs all variants and problems of `hopper check` on one GPU, and writes the result file."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import torch

from cute_fa4 import compile_cache
from cute_fa4.aot import manifest
from cute_fa4.compiler.policy import JitError
from cute_fa4.hopper import calls, cases, check, foreign, gradients, load
from cute_fa4.hopper.gradient_cases import Problem
from cute_fa4.hopper.guarded import Guard
from cute_fa4.hopper.variant import Variant
from cute_fa4.sm100.combine.config import CombineConfig
from cute_fa4.system import progress


def run(
    directory, amount: str, *, part=1, parts=1, only=None, patience: float = 120, report=None
) -> dict:
    """Returns the results, and writes them to `report` after each variant. Stops if the GPU fails.

    part, parts, only   selection of variants, from the command line
    """
    content = manifest.read_manifest(Path(directory))
    result = {**about(directory), "failures": [], "controls": 0}
    result |= {name: [] for name in ("rows", "gradients", "foreign")}
    opened, used = load.load(directory), Used()
    for stand_in in opened.values():
        stand_in.patience(patience)
    variants, of_gradients = cases.selected(only)
    variants, of_gradients = variants[part - 1 :: parts], of_gradients[part - 1 :: parts]
    steps = [variant_step(v, cases.problems(v, amount), used) for v in variants]
    steps += [gradients_step(problem) for problem in of_gradients]
    if part == 1 and not only:  # the control and foreign kernels are not variants
        steps += [control_step(used)]
        if all(any(k["name"] == name for k in content["kernels"]) for name in foreign.KERNELS):
            steps += [lambda result: result["foreign"].extend(foreign.check(directory))]
    # Last, because the first access outside a tensor ends the run.
    steps += [variant_step(v, cases.guarded_problems(v), used, guarded=True) for v in variants]
    with ExitStack() as stack, progress.bar(len(steps), "check", "step") as advance:
        stack.enter_context(used.watching())
        for step in steps:
            try:
                step(result)
            except check.WrongResult as error:
                fail(result, str(error))
            except RuntimeError as error:
                fail(
                    result,
                    f"{type(error).__name__}: {error}; the GPU's context is lost, nothing more can be run",
                )
                break
            finally:
                if report:
                    Path(report).write_text(json.dumps(result, indent=1))
            advance()
    return result  # fmt: skip


def about(directory) -> dict:
    """Machine, date and sources of a run."""
    content = manifest.read_manifest(Path(directory))
    return {
        "device": torch.cuda.get_device_name(),
        "driver": driver_version(),
        "date": time.strftime("%Y-%m-%d"),
        "commit": content["commit"],
        "ptxas": content["ptxas"],
    }


def variant_step(variant: Variant, problems, used: Used, guarded: bool = False):
    """A function that runs problems of a variant, optionally between unmapped pages, and adds their rows."""

    def step(result: dict) -> None:
        begin, rows = time.perf_counter(), []
        for number, problem in enumerate(problems):
            where = f"{variant.name}, {problem.title}"
            where += ", between unmapped pages" * guarded
            try:
                with Guard() as guard:
                    place = guard.place if guarded else None
                    call = calls.call(variant, problem, "cuda", seed=number, place=place)
                    row = check.check(call, used.last)
            except (check.WrongResult, JitError) as error:  # JitError: no kernel
                fail(result, f"{where}: {error}")
                continue
            except RuntimeError as error:
                raise RuntimeError(f"{where}: {error}") from error
            rows.append({**asdict(row), "guarded": guarded})
        result["rows"] += rows
        worst = max((row["relative_error"] for row in rows), default=0.0)
        progress.say(
            f"d={variant.head_dim:<3} {variant.dtype} {variant.title:44} {len(rows):3} problems "
            f"{sum(row['launches'] for row in rows):4} launches, error {worst:.2e}, "
            f"{time.perf_counter() - begin:6.1f} s"
        )

    return step


def gradients_step(problem: Problem):
    """A function that runs a problem of gradients and adds its row to the result."""

    def step(result: dict) -> None:
        try:
            row = gradients.check(problem)
        except JitError as error:  # no kernel
            fail(result, f"{problem.title}: {error}")
            return
        result["gradients"].append(row)
        progress.say(
            f"{problem.title:90} {row['of_allowed']:.2f} of the error allowed, {row['seconds']:6.1f} s"
        )

    return step


def control_step(used: Used):
    """A function that makes claims name wrong blocks, and checks that this is detected."""

    def step(result: dict) -> None:
        call = calls.call(Variant(), cases.LARGE[0], "cuda")
        call.launch()
        kernel = used.last()
        with kernel.claims(wrong=True):
            out, lse = call.launch()
        row = check.Row({}, "", "", {})
        try:
            check.measure(call, out, lse, row)
        except check.WrongResult as error:
            result["controls"] += 1
            progress.say(f"control with wrong claims: {error}")
        else:
            raise check.WrongResult("claims that name a wrong block were not noticed")

    return step


class Used:
    """The StandIn that the last call launched."""

    def __init__(self):
        self._last = None

    def last(self) -> load.StandIn:
        return self._last

    def watching(self):
        """Inside, function_for records its results."""
        from unittest.mock import patch

        ask = compile_cache.function_for

        def note(config, executor):
            function = ask(config, executor)
            # The merge kernel claims no blocks: look at the kernel before it.
            return function if isinstance(config, CombineConfig) else Noting(self, function)

        return patch.object(compile_cache, "function_for", note)

    def note(self, function) -> None:
        self._last = function


class Noting:
    """Wraps a function so that each call records it as the last."""

    def __init__(self, used: Used, function):
        self._used, self._function = used, function

    def __call__(self, *arguments):
        self._used.note(self._function)
        return self._function(*arguments)


def fail(result: dict, text: str) -> None:
    result["failures"].append(text)
    progress.say(f"WRONG: {text}")


def driver_version() -> str:
    import subprocess

    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"
