"""Ctrl-C at every step of initialisation: nothing is left half made, and the next call begins where it can.

A trace function raises KeyboardInterrupt at the first line, of those that initialise something, that has not been
interrupted before; the call is tried again, in the same process, until it is not interrupted any more. So each retry
meets what all the interrupted ones have left behind.
"""

import pytest

from tests import pairwise

from .conftest import python

INTERRUPTED = """
import ast, functools, sys, warnings
import torch
# ctypes drops what comes out of a callback; Python stops tracing at an exception of the trace function.
sys.unraisablehook = lambda unraisable: sys.settrace(on_call)

# Where state of the process is made: (file, function), None for all functions of the file.
PLACES = {
    ("emulator/instructions/instruction_table.py", None), ("emulator/host/runtime_library.py", None),
    ("system/c_compiler.py", None), ("emulator/instructions/lanes.py", "link"), ("emulator/instructions/lanes.py",
    "__init__"), ("emulator/instructions/lanes.py", "_bind"), ("emulator/host/driver_api.py", None),
    ("emulator/machine/memory.py", "add"), ("emulator/machine/memory.py", "unregister"), ("emulator/host/dlpack.py",
    "__dlpack__"), ("emulator/run/program.py", "place_variables"), ("emulator/run/launch.py", "execute_grid"),
    ("emulator/machine/observer.py", None), ("aot/loader.py", None), ("calls/launch.py", "_warn_once"),
    ("compile_cache.py", "function_for"), ("compiler/functions.py", "existing_or_made"), ("calls/repeat.py", "keep"),
    ("operators/library.py", "<module>"), ("operators/library.py", "_define_one"),
}
STRIDE = int(sys.argv[1])       # lines of a function
seen, interrupted = set(), []

@functools.cache
def place_of(code):
    name = code.co_filename.partition("/cute_fa4/")[2]
    if name.startswith("emulator/instructions/") and code.co_name == "<module>":
        return name, "<module>"
    return next((p for p in ((name, code.co_name), (name, None)) if p in PLACES), None)

def wanted(place, code, line):
    if line in cleanup(code.co_filename):
        return False
    lines = lines_of(code)
    if code.co_name != "<module>":
        return lines.index(line) % STRIDE == 1 % STRIDE
    return line == lines[len(lines) // 2]      # definitions and registrations are alike

@functools.cache                               # asked for at every line that is executed
def lines_of(code):
    return sorted({line for *_, line in code.co_lines() if line})

@functools.cache
def cleanup(filename):
    # Lines of `finally`: a second interruption, of the clean-up of the first, is not promised to leave no trace.
    tree = ast.parse(open(filename).read())
    blocks = [node.finalbody for node in ast.walk(tree) if isinstance(node, ast.Try)]
    return {line for block in blocks for part in block for line in range(part.lineno, part.end_lineno + 1)}

def on_call(frame, event, argument):
    place = place_of(frame.f_code)
    if place is None:
        return None
    if frame.f_code.co_name == "callback":           # before its try: ctypes drops the exception
        interrupt(frame, "callback")
    def on_line(frame, event, argument):
        if event == "line" and wanted(place, frame.f_code, frame.f_lineno):
            interrupt(frame, frame.f_lineno)
        return on_line
    return on_line

def interrupt(frame, where):
    key = frame.f_code.co_filename, where
    if key not in seen:
        seen.add(key)
        interrupted.append(key)
        raise KeyboardInterrupt

def until_done(function):
    for _ in range(2000):
        before = len(interrupted)
        sys.settrace(on_call)
        try:
            result = function()
            if len(interrupted) == before:
                return result
        except (KeyboardInterrupt, RuntimeError) as error:
            # A callback that was dropped is an error of the host code; nothing else may come of an interruption.
            assert isinstance(error, KeyboardInterrupt) or "error of the emulator" in str(error), repr(error)
        finally:
            sys.settrace(None)
    raise AssertionError("never done")
"""

EMULATED = """
from cute_fa4 import aot, flash_attn_func
from cute_fa4.reference import attention_float64
warnings.simplefilter("ignore")
aot.load(sys.argv[2])
# One head and one key tile: after an interruption of the launch the whole of it is emulated again.
q, k, v = (torch.randn(1, 40, 1, 64, dtype=torch.bfloat16) for _ in "qkv")
out = until_done(lambda: flash_attn_func(q, k, v, causal=True))
exact, _ = attention_float64(q, k, v, causal=True)
assert (out.double() - exact).abs().max() < 0.02      # bf16 output of values around 1
from cute_fa4.emulator import use
from cute_fa4.emulator.host import driver_api
from cute_fa4.emulator.instructions import lanes
from cute_fa4.emulator.machine import observer
del out
import gc; gc.collect()
left = [a.name for a in driver_api.global_memory.allocations], observer._active
assert not any(left) and all(run._linked for run in lanes._pending), left
assert len(driver_api._settings) == 1

def in_use():
    with use(mode="hostile") as run:
        flash_attn_func(q, k, v, causal=True)
    return run
assert until_done(in_use).launches == 1 and len(driver_api._settings) == 1
files = {name.partition("/cute_fa4/")[2] for name, _ in interrupted}
seen = [f"emulator/instructions/{name}.py" in files for name in ("lanes", "convert")]
print(len(interrupted), len(files), *seen)
"""

OPERATORS = """
from torch._subclasses import FakeTensorMode
def shape():
    from cute_fa4 import flash_attn_func       # defines the operators
    with FakeTensorMode():
        q = torch.empty(1, 40, 2, 64, dtype=torch.bfloat16)
        return flash_attn_func(q, q, q, causal=True).shape
assert until_done(shape) == (1, 40, 2, 64)
print(len(interrupted))
"""


EVERY_LINE = pairwise.sweep_only("interruptions", seconds=300)


@pytest.mark.parametrize("stride", [41, pytest.param(1, marks=EVERY_LINE)])
def test_an_emulated_call_survives_ctrl_c_while_it_initialises(exported, stride):
    done = python(INTERRUPTED + EMULATED, stride, exported, CUTE_FA4_JIT="error", timeout=600)
    steps, files, *both = done.stdout.split()
    # The smaller number of two runs: a place that is renamed must not leave the test empty.
    assert int(steps) > 30 and int(files) > 20 and both == ["True", "True"]


def test_the_operators_survive_ctrl_c_while_they_are_defined():
    assert int(python(INTERRUPTED + OPERATORS, 1).stdout) > 10
