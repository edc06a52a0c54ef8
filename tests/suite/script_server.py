"""Python commands in processes forked from one that has torch and the DSL imported: `python script_server.py`.

    a line of JSON in     {"command": [...], "cwd", "env", "stdin", "out", "err": files, "timeout": seconds}
    a line of JSON out    {"returncode": as subprocess has it, null after the timeout, "cpu_seconds"}

A child is like `python COMMAND`, except that sys.modules already has torch and the DSL, but not this package.
tests/suite/scripts.py has the other end.
"""

import json
import os
import runpy
import signal
import sys
import time
import types
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what imports print is no answer
    preload()
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            break
        print(json.dumps(watch(child, request["timeout"])), file=answers, flush=True)
    else:
        return
    answers.close()
    become(
        request
    )  # from here on the child, whose exit and uncaught errors are the interpreter's business
    run(request["command"])


def preload() -> None:
    """Modules that every script imports and no test is about. Not the package, whose import is tested."""
    import cutlass.cute  # noqa: F401
    import torch  # noqa: F401
    import tvm_ffi  # noqa: F401

    # A fifth of every compile (tracing.py). The tests' modules are no business of a script.
    sys.path.insert(0, str(ROOT))
    from tests.suite import tracing

    tracing.remember_places()
    tracing.forget_contexts()
    sys.path.remove(str(ROOT))
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]


def watch(child: int, timeout: float) -> dict:
    """Until a child has ended; after the timeout it is killed, with what it started."""
    limit, killed = time.monotonic() + timeout, False
    while True:
        ended, status, usage = os.wait4(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > limit and not killed:
            os.killpg(child, signal.SIGKILL)
            killed = True
        time.sleep(0.01)
    return {
        "returncode": None if killed else os.waitstatus_to_exitcode(status),
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
    }


def become(request: dict) -> None:
    """Directory, environment, path and files of a fresh process."""
    os.setsid()  # so that a kill reaches what it starts
    for name, flags, number in (
        (request["stdin"], os.O_RDONLY, 0),
        (request["out"], os.O_WRONLY, 1),
        (request["err"], os.O_WRONLY, 2),
    ):
        os.dup2(os.open(name, flags), number)
    sys.stdin = open(0, closefd=False)  # the server's has read ahead
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    named = [path for path in request["env"].get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = named + [path for path in sys.path[1:] if path not in named]


def run(command: list[str]) -> None:
    """[-W filter] then -c code, -m module or a script, and its arguments."""
    while command[0] == "-W":
        action, _, category = command[1].partition("::")
        warnings.simplefilter(action, getattr(__import__("builtins"), category or "Warning"))
        command = command[2:]
    what, *arguments = command
    if what == "-c":
        code, *arguments = arguments
        sys.argv = ["-c", *arguments]
        sys.path.insert(0, "")
        sys.modules["__main__"] = main_module = types.ModuleType("__main__")
        exec(compile(code, "<string>", "exec"), vars(main_module))
    elif what == "-m":
        name, *arguments = arguments
        sys.argv = [name, *arguments]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        sys.argv = [what, *arguments]
        sys.path.insert(0, os.path.dirname(os.path.abspath(what)))
        runpy.run_path(what, run_name="__main__")


if __name__ == "__main__":
    main()
