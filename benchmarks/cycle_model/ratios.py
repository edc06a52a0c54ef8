"""Ratios of speeds as the tables print them: below LEAST_GAIN there is none, because no model tells less."""

LEAST_GAIN = 0.02


def ratio(value: float) -> str:
    """
    >>> ratio(1.019), ratio(1.02), ratio(0.97)
    ('same', '1.02', '0.97')
    """
    return "same" if abs(value - 1) < LEAST_GAIN else f"{value:.2f}"
