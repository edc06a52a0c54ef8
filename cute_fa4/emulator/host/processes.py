"""Processes that a program starts have the emulated GPU, too, each its own.

    fork                                     they inherit the emulator
    multiprocessing, spawn                   they begin with start() of as_if_cuda.py
    subprocess of [python, SCRIPT.py, ...]   the command becomes python -m cute_fa4.emulator run SCRIPT.py ...

A forkserver is refused. Other commands (python -c, python -m, a shell's) run as they are, without a GPU.
"""

import multiprocessing.context
import multiprocessing.spawn
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from cute_fa4.emulator.host import driver_api
from cute_fa4.emulator.ptx.errors import EmulatorError

_WITH_VALUE = (
    "-W",
    "-X",
    "--check-hash-based-pycs",
)  # options of python that take the next argument


def answer(patches, checks, arch):
    """Start processes as if there were a GPU until patches.undo(). checks, arch: those of as_if_cuda."""
    original = multiprocessing.spawn.get_command_line

    def command_line(**pipes):
        command = original(**pipes)
        arguments = f"{checks!r}, {arch!r}, {driver_api.plain_settings()!r}"
        begin = f"from cute_fa4.emulator.as_if_cuda import start; start({arguments})"
        code = command.index("-c") + 1
        command[code] = f"{begin}; {command[code]}"
        return command

    class Popen(subprocess.Popen):
        def __init__(self, args, *rest, **options):
            super().__init__(emulated(args, checks), *rest, **options)

    patches.set(multiprocessing.spawn, "get_command_line", command_line)
    patches.set(subprocess, "Popen", Popen)
    patches.set(multiprocessing.context.ForkServerProcess, "_Popen", staticmethod(_refuse))


def _refuse(_):
    raise EmulatorError(
        "the program starts a process by multiprocessing's forkserver, which the emulator does not follow; "
        'use multiprocessing.set_start_method("spawn"), or "fork"'
    )


def emulated(command, checks):
    """The command that emulates a Python script; other commands unchanged."""
    place = _script(command) if isinstance(command, (list, tuple)) else None
    if place is None:
        return command
    settings = driver_api.plain_settings()
    level = checks if settings["checks"] == driver_api.DEFAULT else settings["checks"]
    options = ["--mode", settings["mode"], "--seed", str(settings["seed"])]
    if level is None or isinstance(level, str):
        options += ["--checks", level or "none"]
    run = ["-m", "cute_fa4.emulator", "run", *options]
    return [*command[:place], *run, *command[place:]]


def _script(command):
    """The place of a script of the program's own in a command of this Python, or None."""
    words = [os.fsdecode(word) for word in command]
    found = shutil.which(words[0]) if words else None
    if found is None or not os.path.samefile(found, sys.executable):
        return None
    place = 1
    while place < len(words) and words[place].startswith("-"):
        if words[place] in ("-c", "-m", "-"):
            return None
        place += 2 if words[place] in _WITH_VALUE else 1
    if place == len(words) or not words[place].endswith(".py"):
        return None
    path = Path(words[place]).resolve()
    installed = (
        Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")
    )
    return None if any(path.is_relative_to(folder) for folder in installed) else place
