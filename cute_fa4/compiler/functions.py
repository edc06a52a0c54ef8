"""The registry: configuration and executor -> function of this process, compiled here or opened from a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cute_fa4.compiler.compiler import Config
from cute_fa4.system import forks

_functions: dict[tuple[Config, str], Callable] = {}
_seconds: dict[tuple[Config, str], float] = {}
# Functions that exist already, compiled ahead of time: opened at their first use.
_registered: dict[tuple[Config, str], Callable[[], Callable]] = {}
# One lock for all keys: the DSL traces into module-level state, so two compiles at a time are not
# safe even for different keys. A call that finds its function never takes the lock.
_compile_lock = forks.Lock()
# Callbacks of other modules that hold functions; clear() calls them.
_forget: list[Callable[[], None]] = []


@dataclass(frozen=True)
class Statistics:
    """compiles: functions compiled since the process began or clear(); seconds: their sum."""

    compiles: int
    seconds: float


def existing(config: Config, executor: str) -> Callable | None:
    """The function, if this process has used it already."""
    return _functions.get((config, executor))


def existing_or_made(config: Config, executor: str, make: Callable) -> Callable:
    """The function; opened if it is registered, else make(config, executor), once for all threads."""
    key = (config, executor)
    with _compile_lock.held:
        if key not in _functions:
            opened = _registered.get(key)
            _functions[key] = opened() if opened else make(config, executor)
        return _functions[key]


def register(config: Config, executor: str, make: Callable[[], Callable]) -> None:
    """Have existing_or_made call make() instead of compiling; a function that exists already stays."""
    _registered[config, executor] = make


def has(config: Config, executor: str) -> bool:
    """Whether a function exists without compiling or reading the disk."""
    return (config, executor) in _functions or (config, executor) in _registered


def known(executor: str) -> list[Config]:
    """Configurations that have a function for this executor without compiling."""
    keys = dict.fromkeys((*list(_registered), *list(_functions)))
    return [config for config, there in keys if there == executor]


def count_compile(config: Config, executor: str, seconds: float) -> None:
    """For statistics()."""
    _seconds[config, executor] = seconds


def statistics() -> Statistics:
    """What was compiled in this process."""
    return Statistics(compiles=len(_seconds), seconds=sum(_seconds.values()))


def clear() -> None:
    """Forget every function, compiled or registered; what is on disk stays."""
    with _compile_lock.held:
        _functions.clear()
        _registered.clear()
        _seconds.clear()
    for forget in _forget:
        forget()


def on_clear(forget: Callable[[], None]) -> None:
    """Have clear() call forget() after it."""
    _forget.append(forget)
