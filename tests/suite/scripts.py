"""Short scripts, run as processes of their own without a second of imports each.

    done = scripts.run("examples/01_one_call.py", "--characters", "40", cwd=ROOT, env=os.environ)
    done.returncode, done.stdout, done.stderr

A process that has torch and the DSL imported forks one for each script (script_server.py). What a test says of a fresh
process, such as that something is not imported, still needs one: subprocess.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SERVER = Path(__file__).with_name("script_server.py")

cpu_seconds = 0.0  # of all scripts, to be added to those of this process
_server = None


def run(
    *command: str, cwd, env, stdin: str = "", timeout: float = 300
) -> subprocess.CompletedProcess:
    """What subprocess.run says of `python COMMAND`: [-W filter], then -c code, -m module or a script, and arguments."""
    global cpu_seconds
    server = _running()
    with tempfile.TemporaryDirectory() as scratch:
        files = {name: Path(scratch) / name for name in ("stdin", "out", "err")}
        for path in files.values():
            path.write_text("")
        files["stdin"].write_text(stdin)
        request = {
            "command": list(command),
            "cwd": str(cwd),
            "env": dict(env),
            "timeout": timeout,
            **{name: str(path) for name, path in files.items()},
        }
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        line = server.stdout.readline()
        if not line:
            raise RuntimeError(f"the process that forks scripts ended with {server.wait()}")
        answer = json.loads(line)
        out, err = (files[name].read_text() for name in ("out", "err"))
    cpu_seconds += answer["cpu_seconds"]
    if answer["returncode"] is None:
        raise subprocess.TimeoutExpired(command, timeout, out, err)
    return subprocess.CompletedProcess(command, answer["returncode"], out, err)


def _running() -> subprocess.Popen:
    """The server of this process."""
    global _server
    if _server is None or _server.poll() is not None:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        _server = subprocess.Popen(
            [sys.executable, str(SERVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        atexit.register(_end, _server)
    return _server


def _end(server: subprocess.Popen) -> None:
    """It has nothing of its own to finish."""
    server.kill()
    server.wait()
    server.stdin.close()
    server.stdout.close()
