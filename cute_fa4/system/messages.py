"""Short texts of values for error messages, and refusals with the caller's names of arguments."""

import re
from contextlib import contextmanager
from functools import lru_cache

LONGEST = 80


def shown(value) -> str:
    """The repr of a value, cut at LONGEST characters; of a tensor or an array its type, shape and dtype.

    >>> shown("causal"), shown([1, 2] * 1000)[-7:]
    ("'causal'", '2, 1...')
    """
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None and dtype is not None and not isinstance(value, type):
        kind = type(value).__name__
        return f"a {kind} of shape {tuple(shape)} and dtype {dtype}" if len(shape) else f"{value!r}"
    try:
        text = repr(value)
    except Exception:  # a failing repr must not hide the message
        text = f"a {type(value).__name__}"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


@contextmanager
def named_as(names: dict[str, str]):
    """Inside, refusals use the caller's names of arguments. names: inner name -> caller's name.

    >>> with named_as({"k": "k_cache"}):
    ...     raise ValueError("k: 3 heads while q has 4; accepted: a divisor; repeat k")
    Traceback (most recent call last):
    ValueError: k_cache: 3 heads while q has 4; accepted: a divisor; repeat k_cache
    """
    try:
        yield
    except (TypeError, ValueError, NotImplementedError) as error:
        (text,) = error.args if len(error.args) == 1 else (None,)
        if isinstance(text, str) and "accepted" in text:
            error.args = (_words(tuple(names)).sub(lambda name: names[name[0]], text),)
        raise


@lru_cache
def _words(names: tuple[str, ...]) -> re.Pattern:
    """Matches one of the names as a whole word that is not an attribute."""
    return re.compile(rf"(?<![\w.])({'|'.join(map(re.escape, names))})(?!\w)")
