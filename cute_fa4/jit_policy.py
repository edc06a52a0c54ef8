"""CUTE_FA4_JIT: what happens when a call needs a kernel that is neither loaded nor cached.

    allow   compile it (default)
    warn    compile it, with a JitWarning that names the configuration
    error   raise JitError: a service that must not stall finds out at once, and which kernel to export

cute_fa4.warmup compiles whatever the policy: it is called when a service starts.
"""

from __future__ import annotations

import contextlib
import contextvars
import warnings

from cute_fa4 import environment

POLICIES = ("allow", "warn", "error")
VARIABLE = "CUTE_FA4_JIT"

_warming_up = contextvars.ContextVar("warming_up", default=False)


class JitError(RuntimeError):
    """A call needs a kernel that is not there, and CUTE_FA4_JIT=error."""


class JitWarning(UserWarning):
    """A call compiles a kernel, which takes seconds, and CUTE_FA4_JIT=warn."""


def policy() -> str:
    return environment.choice(VARIABLE, *POLICIES)


def check(config, executor: str) -> None:
    """Called before a kernel is compiled: returns, warns, or raises JitError."""
    now = policy()
    if now == "allow" or _warming_up.get():
        return
    text = (
        f"kernel {config.name} for executor {executor!r} is neither loaded nor cached, {VARIABLE}={now}: {config!r}; "
        "export it (python -m cute_fa4 export) and load it with cute_fa4.aot.load, or call cute_fa4.warmup at start"
    )
    if now == "error":
        raise JitError(text)
    warnings.warn(text, JitWarning, stacklevel=2)


@contextlib.contextmanager
def warming_up():
    """Inside, compiling is what was asked for."""
    token = _warming_up.set(True)
    try:
        yield
    finally:
        _warming_up.reset(token)
