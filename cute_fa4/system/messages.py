"""Values as error messages show them: short, whatever they are."""

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
    except Exception:  # a repr of the caller's that fails must not hide the message
        text = f"a {type(value).__name__}"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
