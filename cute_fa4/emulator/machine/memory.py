"""Shared, global and parameter memory: bytes with bounds, alignment and, for shared, a written-map.

    SharedMemory of one CTA (offsets)                GlobalMemory (host addresses)
    0       1024        1024+static                   allocation "q"      allocation "o"
    |reserved| static .shared | dynamic ... |         [ptr, ptr+nbytes)   [ptr, ptr+nbytes)
    fresh bytes are 0xFF (NaN) and unwritten          anything between allocations faults

Every access names its issuer (warp.issuer(), may be None), so that a fault can report it. gather and scatter take
arrays of any shape: one access of ``itemsize`` bytes per element. Items of 1, 2, 4 and 8 bytes are uint8 .. uint64;
items of 16 and 32 bytes have a trailing axis of 4 or 8 uint32.
"""

import ctypes
from bisect import bisect_right

import numpy as np

from cute_fa4.emulator.ptx.errors import BarrierError, IllegalAccess, UninitializedRead
from cute_fa4.emulator.ptx.syntax import RESERVED_SHARED_BYTES

MAX_SHARED_BYTES = 232448
"""Shared memory that one CTA can opt in to on sm_100: 227 KiB (cudaDevAttrMaxSharedMemoryPerBlockOptin)."""

_DTYPES = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_WRITTEN = {1: 0x01, 2: 0x0101, 4: 0x01010101, 8: 0x0101010101010101}


class SharedMemory:
    """Shared memory of one CTA, addressed by offset (the low 24 bits of a shared::cluster address).

    bytes    uint8 array, index = offset
    written  bool array: the byte has been written since the launch
    """

    def __init__(self, static_bytes=0, dynamic_bytes=0, name="shared memory"):
        self.dynamic_base = RESERVED_SHARED_BYTES + static_bytes
        self.size = self.dynamic_base + dynamic_bytes
        self.name = name
        self.labels = None
        self.shadow = None  # checks.shadow.ByteShadow of a launch with ordering checks
        padded = -(-self.size // 32) * 32
        self.bytes = np.full(padded, 0xFF, np.uint8)
        self.written = np.zeros(padded, bool)
        self._owned = np.zeros(padded, bool)
        self.mbarriers = {}
        self.operands = {}  # cached operands of MMAs: tensor_core.shared_operand
        self._views = {n: self.bytes.view(t) for n, t in _DTYPES.items()}
        self._written_views = {n: self.written.view(t) for n, t in _DTYPES.items()}
        self._owned_views = {n: self._owned.view(t) for n, t in _DTYPES.items()}

    def clear(self):
        """Reset to the state before a launch: all bytes 0xFF and unwritten, no barriers."""
        self.bytes.fill(0xFF)
        self.written.fill(False)
        self._owned.fill(False)
        self.mbarriers.clear()

    # -- contiguous ranges -------------------------------------------------------------------------

    def read(self, offset, nbytes, issuer=None):
        """Copy of nbytes bytes. Raises IllegalAccess out of bounds, UninitializedRead if any is unwritten."""
        end = offset + nbytes
        self._check_bounds(offset, end, "read", issuer)
        if not self.written[offset:end].all():
            self._unwritten(offset, nbytes, issuer)
        return self.bytes[offset:end].copy()

    def write(self, offset, data, issuer=None):
        """Write a uint8 array. Raises IllegalAccess out of bounds, BarrierError over a live mbarrier."""
        end = offset + len(data)
        self._check_bounds(offset, end, "write", issuer)
        if self.mbarriers and self._owned[offset:end].any():
            self._over_barrier(offset, len(data), issuer)
        self.bytes[offset:end] = data
        self.written[offset:end] = True

    # -- one access per array element -----------------------------------------------------------------

    def gather(self, offsets, itemsize, issuer=None):
        """Read one item per offset. Raises IllegalAccess (bounds, alignment), UninitializedRead."""
        index, wide = self._items(offsets, itemsize, "read", issuer)
        n = min(itemsize, 8)
        if not (self._written_views[n][index] == _WRITTEN[n]).all():
            for offset in np.ravel(offsets):
                if not self.written[offset : offset + itemsize].all():
                    self._unwritten(int(offset), itemsize, issuer)
        values = self._views[n][index]
        return values.view(np.uint32) if wide else values

    def scatter(self, offsets, values, itemsize, issuer=None, before=None):
        """Write one item per offset. Raises IllegalAccess (bounds, alignment), BarrierError.

        before()  is called after the write's checks, before the bytes change
        """
        index, wide = self._items(offsets, itemsize, "write", issuer)
        n = min(itemsize, 8)
        if self.mbarriers and self._owned_views[n][index].any():
            for offset in np.ravel(offsets):
                if self._owned[offset : offset + itemsize].any():
                    self._over_barrier(int(offset), itemsize, issuer)
        if before is not None:
            before()
        self._views[n][index] = np.ascontiguousarray(values).view(np.uint64) if wide else values
        self._written_views[n][index] = _WRITTEN[n]

    def peek(self, offsets, itemsize):
        """The items at offsets, written or not: not an access of the kernel, for observers."""
        index, _ = self._items(offsets, itemsize, "read", None)
        return self._views[min(itemsize, 8)][index]

    # -- barriers --------------------------------------------------------------------------------------

    def own(self, offset, barrier):
        """Give the 8 bytes at offset to an mbarrier: plain reads and writes of them fault."""
        self.mbarriers[offset] = barrier
        self._owned[offset : offset + 8] = True
        self.written[offset : offset + 8] = False

    def disown(self, offset):
        """The mbarrier at offset is invalidated; its bytes are ordinary, unwritten memory again."""
        del self.mbarriers[offset]
        self._owned[offset : offset + 8] = False

    def describe(self, offset):
        """ "0x2480 (dynamic +0x1c80, Q tile)" for messages; "0x410 (tile+0x10)" in a static variable."""
        at = offset - self.dynamic_base
        dynamic = f"dynamic +0x{at:x}" if at >= 0 else ""
        name = self.labels.shared_name(at) if self.labels else ""
        known = ", ".join(filter(None, (dynamic, name)))
        return f"0x{offset:x} ({known})" if known else f"0x{offset:x}"

    def _items(self, offsets, itemsize, what, issuer):
        """Index of every item in the view of its type; for wide items a trailing axis of 8-byte words."""
        offsets = np.asarray(offsets)
        if offsets.dtype != np.int64:
            offsets = offsets.astype(np.int64)
        if offsets.size:
            low, high = int(offsets.min()), int(offsets.max())
            if low < RESERVED_SHARED_BYTES or high + itemsize > self.size:
                bad = low if low < RESERVED_SHARED_BYTES else high
                self._check_bounds(bad, bad + itemsize, what, issuer)
            if itemsize > 1 and (offsets & (itemsize - 1)).any():
                bad = int(offsets[(offsets & (itemsize - 1)) != 0].ravel()[0])
                raise IllegalAccess(
                    f"{what} of {itemsize} bytes at shared offset {self.describe(bad)}: not aligned to "
                    f"{itemsize} bytes{_where(issuer)}"
                )
        if itemsize <= 8:
            return offsets // itemsize, False
        return (offsets // 8)[..., None] + np.arange(itemsize // 8), True

    def _check_bounds(self, start, end, what, issuer):
        if start < RESERVED_SHARED_BYTES or end > self.size:
            raise IllegalAccess(
                f"{what} of {end - start} bytes at shared offset {self.describe(start)} of {self.name}: accepted is "
                f"0x{RESERVED_SHARED_BYTES:x} to 0x{self.size:x}; the first {RESERVED_SHARED_BYTES} bytes belong to "
                f"the system, dynamic shared memory starts at 0x{self.dynamic_base:x}{_where(issuer)}"
            )

    def _unwritten(self, offset, nbytes, issuer):
        self._barrier_in(offset, nbytes, "read", issuer)
        missing = int(nbytes - self.written[offset : offset + nbytes].sum())
        first = offset + int(np.argmin(self.written[offset : offset + nbytes]))
        raise UninitializedRead(
            f"read of {nbytes} bytes at shared offset {self.describe(offset)} of {self.name}: {missing} of them "
            f"were never written, the first at {self.describe(first)}; wait for the copy or store that writes "
            f"them before reading{_where(issuer)}"
        )

    def _over_barrier(self, offset, nbytes, issuer):
        self._barrier_in(offset, nbytes, "write", issuer)

    def _barrier_in(self, offset, nbytes, what, issuer):
        for at, barrier in self.mbarriers.items():
            if at < offset + nbytes and offset < at + 8:
                raise BarrierError(
                    f"plain {what} of {nbytes} bytes at shared offset {self.describe(offset)} touches the live "
                    f"mbarrier {barrier.name}; use mbarrier instructions, or mbarrier.inval first{_where(issuer)}"
                )


class Allocation:
    """One registered range of host memory that kernels may access as global memory."""

    __slots__ = ("end", "keep", "name", "nbytes", "start", "views")

    def __init__(self, start, nbytes, name, keep=None):
        self.start, self.nbytes, self.end, self.name, self.keep = (
            start,
            nbytes,
            start + nbytes,
            name,
            keep,
        )
        raw = (
            np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(start))
            if nbytes
            else np.zeros(0, np.uint8)
        )
        # Typed views start at the allocation and drop a ragged tail, which only bytes can reach.
        self.views = {n: raw[: nbytes // n * n].view(t) for n, t in _DTYPES.items()}


class GlobalMemory:
    """Host memory that kernels may access: registered allocations, addressed by host address."""

    def __init__(self):
        # (start of each, allocations), by address: one assignment changes both, exceptions or not.
        self._index = ([], [])
        self._last = None
        self.multicasts = ()  # Multicast ranges: for multimem instructions

    def register(self, pointer, nbytes, name="allocation", keep=None):
        """Allow accesses to [pointer, pointer + nbytes). Returns the Allocation, for unregister.

        keep  an object to keep alive while the allocation is registered
        """
        allocation = Allocation(pointer, nbytes, name, keep)
        self.add(allocation)
        return allocation

    def add(self, allocation):
        """register with the caller's Allocation, so that an exception cannot lose it."""
        starts, allocations = self._index
        at = bisect_right(starts, allocation.start)
        self._index = (
            [*starts[:at], allocation.start, *starts[at:]],
            [*allocations[:at], allocation, *allocations[at:]],
        )

    @property
    def allocations(self):
        """The registered allocations, by address."""
        return tuple(self._index[1])

    def unregister(self, allocation):
        """Forbid accesses to an allocation again; no effect if it is not registered."""
        if self._last is allocation:
            self._last = None
        starts, allocations = self._index
        if allocation not in allocations:
            return
        at = allocations.index(allocation)
        self._index = starts[:at] + starts[at + 1 :], allocations[:at] + allocations[at + 1 :]

    def find(self, address, nbytes):
        """The allocation that contains [address, address + nbytes), or None."""
        last = self._last
        if last is not None and last.start <= address and address + nbytes <= last.end:
            return last
        # Registered views may overlap (slices of one tensor), so check all that start before the address.
        starts, allocations = self._index
        for allocation in allocations[: bisect_right(starts, address)][::-1]:
            if address + nbytes <= allocation.end:
                self._last = allocation
                return allocation
        return None

    def read(self, address, nbytes, issuer=None):
        """Copy of nbytes bytes as uint8. Raises IllegalAccess outside the registered allocations."""
        allocation = self._find(address, nbytes, "read", issuer)
        start = address - allocation.start
        return allocation.views[1][start : start + nbytes].copy()

    def write(self, address, data, issuer=None):
        """Write a uint8 array. Raises IllegalAccess outside the registered allocations."""
        allocation = self._find(address, len(data), "write", issuer)
        start = address - allocation.start
        allocation.views[1][start : start + len(data)] = data

    def gather(self, addresses, itemsize, issuer=None):
        """Read one item per address. Raises IllegalAccess (allocation, alignment)."""
        addresses = np.asarray(addresses, np.uint64)
        flat = addresses.ravel()
        self._check_alignment(flat, itemsize, "read", issuer)
        n = min(itemsize, 8)
        out = np.empty((len(flat), itemsize // n), _DTYPES[n])
        for allocation, members in self._split(flat, itemsize, "read", issuer):
            offsets = (flat[members] - np.uint64(allocation.start)).astype(np.int64)
            out[members] = _view(allocation, n, offsets)[
                (offsets // n)[:, None] + np.arange(itemsize // n)
            ]
        if itemsize <= 8:
            return out.reshape(addresses.shape)
        return out.view(np.uint32).reshape(*addresses.shape, itemsize // 4)

    def scatter(self, addresses, values, itemsize, issuer=None, before=None):
        """Write one item per address. Raises IllegalAccess (allocation, alignment). before(): as in SharedMemory."""
        flat = np.asarray(addresses, np.uint64).ravel()
        self._check_alignment(flat, itemsize, "write", issuer)
        n = min(itemsize, 8)
        source = np.ascontiguousarray(values).view(_DTYPES[n]).reshape(len(flat), itemsize // n)
        parts = list(self._split(flat, itemsize, "write", issuer))
        if before is not None:
            before()
        for allocation, members in parts:
            offsets = (flat[members] - np.uint64(allocation.start)).astype(np.int64)
            _view(allocation, n, offsets)[(offsets // n)[:, None] + np.arange(itemsize // n)] = (
                source[members]
            )

    def _split(self, flat, itemsize, what, issuer):
        """Yield (allocation, indices of flat in it); usually all of flat is in one allocation."""
        if not len(flat):
            return
        low, high = int(flat.min()), int(flat.max())
        allocation = self.find(low, high + itemsize - low)
        if allocation is not None:
            yield allocation, slice(None)
            return
        for i, address in enumerate(flat.tolist()):
            yield self._find(address, itemsize, what, issuer), slice(i, i + 1)

    def _check_alignment(self, flat, itemsize, what, issuer):
        if itemsize > 1:
            low = flat & np.uint64(itemsize - 1)
            if low.any():
                bad = int(flat[low != 0][0])
                raise IllegalAccess(
                    f"{what} of {itemsize} bytes at global address 0x{bad:x}: not aligned to {itemsize} bytes"
                    f"{_where(issuer)}"
                )

    def _find(self, address, nbytes, what, issuer):
        allocation = self.find(address, nbytes)
        if allocation is None:
            raise IllegalAccess(
                f"{what} of {nbytes} bytes at {self.describe(address)}{_where(issuer)}"
            )
        return allocation

    def describe(self, address):
        """The position of an address relative to the registered allocations, for messages."""
        text = f"global address 0x{address:x}: outside every tensor handed to the kernel"
        if self.allocations:
            near = min(
                self.allocations, key=lambda a: min(abs(address - a.start), abs(address - a.end))
            )
            if address >= near.end:
                where = f"{address - near.end} bytes after the end"
            elif address < near.start:
                where = f"{near.start - address} bytes before the start"
            else:
                where = f"at byte {address - near.start}"
            text += f" ({where} of {near.name}, {near.nbytes} bytes)"
        return text


class ParamMemory:
    """Kernel parameters: read-only bytes, addressed by offset from the first parameter."""

    def __init__(self, data):
        self.bytes = np.frombuffer(bytes(data), np.uint8)

    def read(self, offset, nbytes, issuer=None):
        """Copy of nbytes bytes as uint8. Raises IllegalAccess outside the parameters."""
        if offset < 0 or offset + nbytes > len(self.bytes):
            raise IllegalAccess(
                f"read of {nbytes} bytes at parameter offset {offset}: the kernel has {len(self.bytes)} bytes of "
                f"parameters{_where(issuer)}"
            )
        return self.bytes[offset : offset + nbytes].copy()

    def gather(self, offsets, itemsize, issuer=None):
        """Read one item per offset, like SharedMemory.gather."""
        offsets = np.asarray(offsets)
        flat = offsets.ravel()
        if len(flat) and (flat == flat[0]).all():  # the common case
            raw = np.broadcast_to(
                self.read(int(flat[0]), itemsize, issuer), (len(flat), itemsize)
            ).copy()
        else:
            raw = np.stack([self.read(int(offset), itemsize, issuer) for offset in flat])
        if itemsize <= 8:
            return raw.view(_DTYPES[itemsize]).reshape(offsets.shape)
        return raw.view(np.uint32).reshape(*offsets.shape, itemsize // 4)


def _view(allocation, n, offsets):
    # The start of an allocation may be less aligned than the items (a bf16 tensor read as 16-byte
    # vectors from an odd element): addresses are aligned, so shift the view to an aligned start.
    skew = allocation.start % n
    if not skew:
        return allocation.views[n]
    offsets += skew
    start, length = allocation.start - skew, (allocation.nbytes + skew) // n * n
    raw = np.ctypeslib.as_array((ctypes.c_uint8 * length).from_address(start))
    return raw.view(_DTYPES[n])


def _where(issuer):
    return f"\n{issuer.where()}" if issuer is not None else ""
