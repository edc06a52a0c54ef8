"""Environment variables that name one of a few choices."""

import os


def choice(variable: str, *accepted: str) -> str:
    """The variable's value, or the first accepted word if it is unset or empty; ValueError for any other word."""
    value = os.environ.get(variable) or accepted[0]
    if value not in accepted:
        raise ValueError(f"{variable}={value!r}; accepted: {', '.join(accepted)}")
    return value
