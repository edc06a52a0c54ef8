"""Operands of tcgen05.mma, gathered by their descriptors: as float64 arrays, or as addresses for products in C."""

import ctypes
from functools import lru_cache

import numpy as np

from cute_fa4.emulator.machine.element_formats import CHUNK, E4M3, E5M2
from cute_fa4.emulator.machine.fast_paths import FORMATS, Operand
from cute_fa4.emulator.machine.matrix_descriptors import K_BYTES, chunk_numbers
from cute_fa4.emulator.machine.tensor_memory import split_address
from cute_fa4.emulator.ptx.errors import UninitializedRead


def read_shared_operand(cta, bits, element, mn_major, rows, k_bytes=K_BYTES):
    """Operand [rows, K] as float64, from the shared memory of one CTA by its descriptor.

    Raises UninitializedRead or IllegalAccess (from shared memory), EmulatorError (descriptor).
    """
    numbers, end = chunk_numbers(bits, mn_major, element.itemsize, rows, k_bytes)
    memory = cta.shared.bytes
    if end > memory.size:
        cta.shared.read(end - CHUNK, CHUNK)  # raises: out of bounds
    whole = memory.size // CHUNK * CHUNK
    # 16 bytes move as one complex128, whose bits NumPy copies unchanged.
    written = cta.shared.written[:whole].view(np.complex128).take(numbers).view(np.uint8)
    if not written.min():
        bad = numbers.ravel()[int(np.argmin(written.reshape(-1, CHUNK).min(axis=1)))] * CHUNK
        cta.shared.read(int(bad), CHUNK)  # raises: never written
        raise UninitializedRead(f"MMA operand at shared offset 0x{bad:x} was never written")
    raw = memory[:whole].view(np.complex128).take(numbers).view(element.raw)
    values = element.decode(raw)
    return values.T if mn_major else values


def read_tensor_operand(cta, address, element, rows, what):
    """A [rows, K] as float64 from tensor memory: row r in lane r, elements packed from the low bits up."""
    lane, column = split_address(address)
    words = cta.tmem.read(lane, column, rows, K_BYTES // 4, what)  # [column, lane]
    raw = np.ascontiguousarray(words.T).view(element.raw)
    return (element.in_tensor_memory or element.decode)(raw)


def shared_operand(shared, bits, element, mn_major, rows):
    """Address of the fast_paths.Operand of a descriptor; None if it extends past the end of shared memory."""
    key = (bits, element.name, mn_major, rows)
    known = shared.operands.get(key)
    if known is None:
        numbers, end = chunk_numbers(bits, mn_major, element.itemsize, rows)
        if end > shared.bytes.size:
            return None
        known = _operand(element, mn_major, rows, 0, shared.bytes, shared.written, numbers)
        shared.operands[key] = known
    return known[0]


@lru_cache(maxsize=1024)
def _tensor_operand(column, element):
    return _operand(element, False, 128, column)


def tensor_operand(address, element):
    """The same for A in tensor memory."""
    return _tensor_operand(split_address(address)[1], element)[0]


def _operand(element, mn_major, rows, column, *arrays):
    """(address, object that must outlive its use)."""
    table = {"e4m3": E4M3, "e5m2": E5M2}.get(element.name)
    objects = [*map(id, arrays), *[None] * (3 - len(arrays)), None if table is None else id(table)]
    operand = Operand(*objects, FORMATS[element.name], element.itemsize, mn_major, rows, column)
    return ctypes.addressof(operand), operand, arrays
