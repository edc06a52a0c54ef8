"""Gains of speed as tables and commands print them. Below LEAST_GAIN there is none: no model, no timer tells less."""

LEAST_GAIN = 0.02
AS_FAST = "as fast"


def ratio(value: float, alike: str = AS_FAST) -> str:
    """A speed over another one, with two decimals; "as fast" where they differ by less than LEAST_GAIN.

    alike: the words for that, of what is no speed

    >>> ratio(1.019), ratio(1.02), ratio(0.97), ratio(1.0, "as much")
    ('as fast', '1.02', '0.97', 'as much')
    """
    return alike if abs(value - 1) < LEAST_GAIN else f"{value:.2f}"


def change(share: float, noise: float = LEAST_GAIN) -> str:
    """A change of a time or a speed, as a share; "as fast" where it is below LEAST_GAIN or within the noise.

    >>> change(0.0199), change(-0.02), change(0.03, noise=0.04)
    ('as fast', '-2.0%', 'as fast')
    """
    small = abs(share) < LEAST_GAIN or (noise > LEAST_GAIN and abs(share) <= noise)
    return AS_FAST if small else f"{share:+.1%}"
