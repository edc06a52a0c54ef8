"""The compiler is a separate requirement: a runtime that only loads kernels does not need it.

cute-fa4            the package and the compiler
cute-fa4-runtime    the same package, without it (packaging/runtime)
"""

from __future__ import annotations

from cute_fa4.compiler.policy import JitError

# As in pyproject.toml; tests/aot/test_runtime.py compares.
COMPILER = ("nvidia-cutlass-dsl[cu13]>=4.8,<5", "cuda-python>=12.8")


class CompilerMissingError(JitError):
    """A kernel has to be compiled, and the compiler is not installed."""


def check() -> None:
    """CompilerMissingError, with what to install, unless the compiler can be imported."""
    try:
        import cutlass.cute  # noqa: F401
    except ModuleNotFoundError as error:
        raise CompilerMissingError(
            f"the compiler is not installed (no module {error.name!r}): pip install {how_to_install()}; a run-time "
            "without it runs kernels that were exported elsewhere: cute_fa4.aot.load"
        ) from None


def how_to_install() -> str:
    """Arguments of pip install."""
    return " ".join(f"'{requirement}'" for requirement in COMPILER)
