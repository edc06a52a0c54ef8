"""Minimum, maximum and selection, for Python numbers and for Int32 in a kernel.

One formula then serves the kernel and its host test. The compiler is imported only for kernel numbers, because the
host evaluates configurations without it.
"""


def choose(condition, yes, no):
    """`yes` if the condition holds, else `no`; both are evaluated.

    >>> choose(2 < 3, 1, 0)
    1
    """
    if isinstance(condition, bool):
        return yes if condition else no
    from cutlass import select_

    return select_(condition, _int32(yes), _int32(no))


def minimum(a, b):
    """
    >>> minimum(2, 3)
    2
    """
    return choose(a < b, a, b)


def maximum(a, b):
    """
    >>> maximum(2, 3)
    3
    """
    return choose(a > b, a, b)


def quotient(a, b):
    """a // b of nonnegative numbers; signed division takes twice as long on the device.

    >>> quotient(7, 2)
    3
    """
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    from cutlass import Int32, Uint32

    return Int32(Uint32(a) // Uint32(b))


def _int32(value):
    from cutlass import Int32

    return Int32(value) if isinstance(value, int) else value
