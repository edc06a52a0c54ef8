"""Fake tensors: a dtype and symbols instead of data, for the compiler.

Strides are 64-bit symbols divisible by what TMA needs.
"""

from __future__ import annotations

from math import prod

from cute_fa4.dtypes import DTYPES, elements_in

# TMA needs base addresses and strides that are multiples of 16 bytes, which is 8 elements of 16 bits.
ALIGNMENT_BYTES = 16


def fake_rows(dtype: str, shape: tuple):
    """A tensor for TMA and 16-byte accesses: a contiguous depth, other strides multiples of 16 bytes."""
    from cutlass.cute import sym_int64
    from cutlass.cute.runtime import make_fake_tensor

    per_alignment = elements_in(dtype, ALIGNMENT_BYTES)
    strides = [sym_int64(divisibility=per_alignment) for _ in shape[:-1]]
    return make_fake_tensor(
        DTYPES[dtype].cutlass, shape, (*strides, 1), assumed_align=ALIGNMENT_BYTES
    )


def fake_dense(dtype: str, shape: tuple):
    """A contiguous tensor for 16-byte accesses, with sizes that are numbers after the first."""
    from cutlass.cute import sym_int64
    from cutlass.cute.runtime import make_fake_tensor

    inner = [prod(shape[place + 1 :]) for place in range(1, len(shape))]
    strides = sym_int64(divisibility=elements_in(dtype, ALIGNMENT_BYTES)), *inner
    return make_fake_tensor(DTYPES[dtype].cutlass, shape, strides, assumed_align=ALIGNMENT_BYTES)


def fake_elements(dtype: str, shape: tuple, free_last: bool = False):
    """A tensor read element by element; its last dimension is contiguous unless free_last."""
    from cutlass.cute import sym_int, sym_int64
    from cutlass.cute.runtime import make_fake_tensor

    sizes = tuple(sym_int() if size is None else size for size in shape)
    strides = [sym_int64() for _ in shape[:-1]] + [sym_int64() if free_last else 1]
    width = DTYPES[dtype].bytes_of(1)
    return make_fake_tensor(DTYPES[dtype].cutlass, sizes, tuple(strides), assumed_align=width)
