"""Shared and global memory: bounds, alignment, the written-map, and typed gathers against plain bytes."""

import numpy as np
import pytest

from cute_fa4.emulator.machine.mbarrier import MBarrier
from cute_fa4.emulator.machine.memory import GlobalMemory, ParamMemory, SharedMemory
from cute_fa4.emulator.ptx.errors import BarrierError, IllegalAccess, UninitializedRead

BASE = 1024  # first byte that belongs to the kernel


@pytest.fixture
def shared():
    return SharedMemory(dynamic_bytes=1024)


def test_what_is_written_is_read(shared):
    data = np.arange(100, dtype=np.uint8)
    shared.write(BASE + 3, data)
    assert (shared.read(BASE + 3, 100) == data).all()


def test_unwritten_bytes_fault_and_are_counted(shared):
    shared.write(BASE, np.zeros(10, np.uint8))
    with pytest.raises(UninitializedRead, match="6 of them were never written"):
        shared.read(BASE, 16)
    with pytest.raises(UninitializedRead):
        shared.gather(np.array([BASE + 8]), 4)


@pytest.mark.parametrize("offset, nbytes", [(BASE - 1, 1), (BASE + 1024, 1), (BASE + 1020, 8)])
def test_shared_bounds(shared, offset, nbytes):
    with pytest.raises(IllegalAccess, match="accepted is"):
        shared.write(offset, np.zeros(nbytes, np.uint8))


@pytest.mark.parametrize("offset", [0, BASE - 1, BASE + 1024, 1 << 23])
def test_shared_bounds_of_items(shared, offset):
    with pytest.raises(IllegalAccess, match="accepted is"):
        shared.scatter(np.array([BASE, offset]), np.zeros(2, np.uint8), 1)


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8, 16, 32])
def test_gather_and_scatter_are_reads_and_writes_of_items(shared, itemsize):
    """Oracle: the same items through contiguous reads of bytes."""
    rng = np.random.default_rng(itemsize)
    shared.write(BASE, rng.integers(0, 256, 1024, np.uint8))
    offsets = BASE + itemsize * rng.permutation(1024 // itemsize)[:16]
    raw = (
        np.ascontiguousarray(shared.gather(offsets, itemsize)).view(np.uint8).reshape(16, itemsize)
    )
    assert all((raw[i] == shared.read(int(o), itemsize)).all() for i, o in enumerate(offsets))
    new = rng.integers(0, 256, (16, itemsize), np.uint8)
    shared.scatter(
        offsets, new.view(f"u{min(itemsize, 8)}").squeeze(-1) if itemsize <= 8 else new, itemsize
    )
    assert all((new[i] == shared.read(int(o), itemsize)).all() for i, o in enumerate(offsets))


def test_misaligned_access_faults(shared):
    shared.write(BASE, np.zeros(64, np.uint8))
    with pytest.raises(IllegalAccess, match="not aligned to 4"):
        shared.gather(np.array([BASE + 2]), 4)


def test_a_live_mbarrier_owns_its_bytes(shared):
    shared.own(BASE + 8, MBarrier(1, name="kv.full[0]"))
    with pytest.raises(BarrierError, match=r"kv.full\[0\]"):
        shared.write(BASE + 12, np.zeros(1, np.uint8))
    with pytest.raises(BarrierError):
        shared.read(BASE + 8, 8)
    with pytest.raises(BarrierError):
        shared.scatter(np.array([BASE + 8]), np.zeros(1, np.uint32), 4)
    shared.write(BASE, np.zeros(8, np.uint8))
    shared.disown(BASE + 8)
    shared.write(BASE + 8, np.zeros(8, np.uint8))


def test_global_memory_is_the_registered_arrays_only():
    a, b = np.arange(16, dtype=np.uint32), np.zeros(16, np.uint32)
    memory = GlobalMemory()
    first = memory.register(a.ctypes.data, a.nbytes, "a")
    memory.register(b.ctypes.data, b.nbytes, "b")
    addresses = a.ctypes.data + 4 * np.arange(16, dtype=np.uint64)
    assert (memory.gather(addresses, 4) == a).all()
    memory.scatter(b.ctypes.data + 4 * np.arange(16, dtype=np.uint64), a, 4)
    assert (b == a).all()
    with pytest.raises(IllegalAccess, match="0 bytes after the end of"):
        memory.gather(addresses + np.uint64(4), 4)
    memory.unregister(first)
    with pytest.raises(IllegalAccess):
        memory.read(a.ctypes.data, 4)


def test_global_gather_over_two_arrays():
    a, b = np.arange(4, dtype=np.uint64), np.arange(10, 14, dtype=np.uint64)
    memory = GlobalMemory()
    for name, x in (("a", a), ("b", b)):
        memory.register(x.ctypes.data, x.nbytes, name)
    where = np.array([a.ctypes.data + 8, b.ctypes.data + 16], np.uint64)
    assert memory.gather(where, 8).tolist() == [1, 12]


@pytest.mark.parametrize("skew", [2, 6, 14])
def test_wide_items_in_an_array_that_starts_unaligned(skew):
    """A view that starts at an odd element still has 16-byte vectors at aligned addresses."""
    raw = np.arange(256, dtype=np.uint8)
    start = -raw.ctypes.data % 16
    view = raw[start + skew :]
    memory = GlobalMemory()
    memory.register(view.ctypes.data, view.nbytes, "view")
    where = raw.ctypes.data + start + 32
    item = memory.gather(np.array([where], np.uint64), 16)
    assert (item.view(np.uint8).ravel() == raw[start + 32 : start + 48]).all()


def test_parameters_are_read_only_bytes():
    params = ParamMemory(bytes(range(24)))
    assert params.gather(np.full(3, 8), 4).tolist() == [0x0B0A0908] * 3
    assert params.gather(np.array([0, 16]), 8).tolist() == [0x0706050403020100, 0x1716151413121110]
    with pytest.raises(IllegalAccess, match="24 bytes"):
        params.read(20, 8)
