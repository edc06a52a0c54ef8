"""The last writer and the last readers of every byte: numbers of accesses, stored in parallel to the memory.

    Shadow        writer[i]: the last access that wrote granule i;  readers[actor][i]: its last read
    ByteShadow    granules of 16 bytes, and single bytes where an access was smaller

                  chunk     0     1     2     3            coarse   writer of 16 bytes
                  slot     -1    -1     0    -1            fine     slot 0: writers of 16 single bytes

A write does not have to erase earlier reads: an access ordered after the write is also ordered after them, and any
other access is reported for the write.
"""

import ctypes

import numpy as np

from cute_fa4.emulator.machine.fast_paths import ShadowState, fast

CHUNK = 16


class Shadow:
    """Last writer and last reads of granules; numbers are 0 without an access.

    readers  actor -> its last read     latest  by actor: its latest read of any granule
    equal    actor -> its last write that an unordered write of the same bytes has replaced (equal_writes.py)
    """

    __slots__ = ("_addresses", "_state", "equal", "in_c", "latest", "readers", "writer")

    def __init__(self, shape):
        self.writer = np.zeros(shape, np.int32)
        self.readers, self.equal = {}, {}
        self.latest = np.zeros(64, np.int32)
        self._state = ShadowState()
        self.in_c = ctypes.addressof(self._state)
        self._place()

    def read(self, actor, at, number):
        """Record a read."""
        self.column(actor)[at] = number
        self.latest[actor] = number

    def column(self, actor, of="readers"):
        """The numbers of an actor."""
        columns = getattr(self, of)
        column = columns.get(actor)
        if column is None:
            column = columns[actor] = np.zeros_like(self.writer)
            if of == "readers":
                self._place()
        return column

    def grow(self, size):
        """More granules, without accesses."""
        more = size - len(self.writer)
        self.writer = np.concatenate((self.writer, np.zeros(more, np.int32)))
        for columns in (self.readers, self.equal):
            for actor, column in columns.items():
                columns[actor] = np.concatenate((column, np.zeros(more, np.int32)))
        self._place()

    def merge_columns(self):
        """Merge the columns of all actors into that of actor 0."""
        for columns in (self.readers, self.equal):
            if columns:
                column = np.maximum.reduce(list(columns.values()))
                columns.clear()
                columns[0] = column
        latest = self.latest.max()
        self.latest.fill(0)
        self.latest[0] = latest
        self._place()

    def _place(self):
        """Pass the addresses of the arrays to fast_paths.c."""
        actors = max(self.readers, default=0) + 1
        while actors > len(self.latest):
            self.latest = np.concatenate((self.latest, np.zeros_like(self.latest)))
        self._addresses = np.zeros(len(self.latest), np.int64)
        for actor, column in self.readers.items():
            self._addresses[actor] = fast.address_of(column)
        state = self._state
        state.writer, state.latest = fast.address_of(self.writer), fast.address_of(self.latest)
        state.readers, state.actors = fast.address_of(self._addresses), len(self.latest)


class ByteShadow:
    """The Shadow of a range of bytes, coarse where possible, exact to the byte where needed.

    Parts of an access are (Shadow, index, fine): the granules it touches.
    """

    __slots__ = ("_chunk_of_slot", "_slot", "_slots", "coarse", "fine")
    CHUNK = CHUNK

    def __init__(self, nbytes):
        self.coarse = Shadow(-(-nbytes // CHUNK))
        self.fine = None
        self._slot = None
        self._slots = 0
        self._chunk_of_slot = None

    def chunks(self, at):
        """Parts of whole chunks: a slice or an int array of chunk numbers."""
        if self.fine is None:
            return ((self.coarse, at, False),)
        slots = self._slot[at]
        exact = slots >= 0
        if not exact.any():
            return ((self.coarse, at, False),)
        if isinstance(at, slice):
            at = np.arange(at.start, at.stop)
        rest = at[~exact]
        bytes_of = (slots[exact][:, None] * CHUNK + np.arange(CHUNK)).ravel()
        parts = ((self.fine, bytes_of, True),)
        return ((self.coarse, rest, False), *parts) if rest.size else parts

    def items(self, offsets, nbytes):
        """Parts of one item of nbytes per offset (int64 array, aligned to nbytes)."""
        if nbytes >= CHUNK:
            chunks = offsets.ravel() // CHUNK
            if nbytes > CHUNK:
                chunks = (chunks[:, None] + np.arange(nbytes // CHUNK)).ravel()
            return self.chunks(chunks)
        return self._bytes((offsets.ravel()[:, None] + np.arange(nbytes)).ravel())

    def touch_items(self, order, strand, offsets, nbytes, number, write, happened):
        """Check and record an access of items by a warp in C; False, without an effect, if Python must handle it."""
        coarse, fine = self.coarse, self.fine
        if write and (coarse.equal or fine is not None and fine.equal):
            return False
        known = len(happened)
        return fast.touch_items(
            coarse.in_c, None if fine is None else fine.in_c, self._slot, offsets, offsets.size, nbytes, write,
            strand.actor, happened, known, happened, known, order.actor_of, number,
        )  # fmt: skip

    def span(self, start, nbytes):
        """Parts of a contiguous range."""
        if start % CHUNK == 0 and nbytes % CHUNK == 0:
            return self.chunks(slice(start // CHUNK, (start + nbytes) // CHUNK))
        return self._bytes(np.arange(start, start + nbytes))

    def rows(self, starts, nbytes):
        """Parts of ranges of equal length: starts is an int array."""
        if nbytes % CHUNK == 0 and not (starts % CHUNK).any():
            return self.chunks((starts[:, None] // CHUNK + np.arange(nbytes // CHUNK)).ravel())
        return self._bytes((starts[:, None] + np.arange(nbytes)).ravel())

    def _bytes(self, offsets):
        chunks = offsets // CHUNK
        if self.fine is None:
            self.fine = Shadow(CHUNK * 64)
            self._slot = np.full(len(self.coarse.writer), -1, np.int32)
            self._chunk_of_slot = np.zeros(64, np.int64)
        slots = self._slot[chunks]
        if slots.min() < 0:
            self._refine(np.unique(chunks[slots < 0]))
            slots = self._slot[chunks]
        return ((self.fine, slots * CHUNK + offsets % CHUNK, True),)

    def _refine(self, chunks):
        """Give chunks granules of one byte, which start with the numbers of the chunk."""
        first, self._slots = self._slots, self._slots + len(chunks)
        size = len(self._chunk_of_slot)
        if self._slots > size:
            while self._slots > size:
                size *= 2
            self.fine.grow(size * CHUNK)
            grown = np.zeros(size, np.int64)
            grown[: len(self._chunk_of_slot)] = self._chunk_of_slot
            self._chunk_of_slot = grown
        self._slot[chunks] = np.arange(first, self._slots)
        self._chunk_of_slot[first : self._slots] = chunks
        fine = slice(first * CHUNK, self._slots * CHUNK)
        self.fine.writer[fine] = np.repeat(self.coarse.writer[chunks], CHUNK)
        for of in ("readers", "equal"):
            for actor, column in getattr(self.coarse, of).items():
                self.fine.column(actor, of)[fine] = np.repeat(column[chunks], CHUNK)
        of_chunks = self.coarse.latest
        self.fine.latest[: len(of_chunks)] = np.maximum(
            self.fine.latest[: len(of_chunks)], of_chunks
        )

    def written(self, since=0):
        """bool by byte: it was written by an access after number `since`."""
        return self._bytes_where(lambda shadow: shadow.writer > since)

    def read(self, since=0):
        """bool by byte: it was read, likewise."""

        def was_read(shadow):
            found = np.zeros(len(shadow.writer), bool)
            for column in shadow.readers.values():
                found |= column > since
            return found

        return self._bytes_where(was_read)

    def _bytes_where(self, holds):
        """The result of holds(Shadow) for granules, by byte."""
        found = np.repeat(holds(self.coarse), CHUNK)
        if self.fine is not None:
            chunks = self._chunk_of_slot[: self._slots]
            fine = holds(self.fine)[: self._slots * CHUNK].reshape(-1, CHUNK)
            found.reshape(-1, CHUNK)[chunks] = fine
        return found

    def offset(self, part, numbers, wanted):
        """Byte offset of the first granule of a part with the wanted number."""
        _, at, fine = part
        position = int(np.argmax(numbers.ravel() == wanted))
        granule = at.start + position if isinstance(at, slice) else int(at.ravel()[position])
        if fine:
            return int(self._chunk_of_slot[granule // CHUNK]) * CHUNK + granule % CHUNK
        return granule * CHUNK

    def offsets_of(self, granules, fine):
        """Byte offsets at which granules of a part begin."""
        if fine:
            return self._chunk_of_slot[granules // CHUNK] * CHUNK + granules % CHUNK
        return granules * CHUNK

    def forget_readers(self):
        """Attribute all accesses to actor 0, which represents earlier clusters."""
        for shadow in (self.coarse, self.fine):
            if shadow is not None:
                shadow.merge_columns()
