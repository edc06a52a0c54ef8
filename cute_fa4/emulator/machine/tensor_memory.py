"""Tensor memory of one CTA: 512 columns x 128 lanes of 32-bit words, allocated by columns.

                  column 0      32            ...             511      address = lane << 16 | column
      lanes   0- 31 |                                           |      warps with index % 4 == 0
      lanes  32- 63 |                                           |                         == 1
      lanes  64- 95 |                                           |                         == 2
      lanes  96-127 |                                           |                         == 3

Words are stored as ``words[column, lane]``: register i of a warp is one slice of 32 consecutive words, and a
transposed accumulator tile is one block of rows. A word is poison until it is written.

PTX ISA, "Tensor Memory" (addressing, allocation, access restrictions) and tcgen05.alloc.
"""

import numpy as np

from cute_fa4.emulator.ptx.errors import TensorMemoryError, UninitializedRead
from cute_fa4.emulator.ptx.labels import NO_LABELS

COLUMNS = 512
LANES = 128
# tcgen05.alloc hands out powers of two, 32 to 512 columns.
MIN_ALLOCATION = 32
POISON = 0xFFFFFFFF


def split_address(address):
    """Tensor-memory address -> (lane, column), each 16 bits."""
    return int(address) >> 16 & 0xFFFF, int(address) & 0xFFFF


class TensorMemory:
    """The words of one CTA's tensor memory, their allocations, and which were written.

    words    uint32 (512, 128): words[column, lane]
    written  bool   (512, 128)
    blocks   first column -> columns, of the live allocations; issuers: first column -> who allocated it
    cta_group  1 or 2 once a tcgen05 instruction has been executed: a kernel may use only one of them
    """

    def __init__(self, labels=NO_LABELS, name="CTA"):
        """labels: KernelLabels whose tmem entries name columns in messages; name: of the CTA, for messages."""
        self.words = np.full((COLUMNS, LANES), POISON, np.uint32)
        self.written = np.zeros((COLUMNS, LANES), bool)
        self.allocated = np.zeros(COLUMNS, bool)
        self.blocks, self.issuers = {}, {}
        self.labels = labels or NO_LABELS
        self.name = name
        self.cta_group = None
        self.relinquished = False
        self.allocations = (
            0  # number of tcgen05.alloc so far: the two CTAs of a pair allocate together
        )
        self.half_done = {}  # warp index -> (first column, number) of an alloc that waits for the other CTA
        self.allocated_by = (
            None  # (actor, access) of the last complete tcgen05.alloc, with ordering checks
        )
        self.shadow = None  # checks.shadow.Shadow of a launch with ordering checks
        self.pending_stores = {}  # warp index -> tcgen05.st in flight

    # --- allocation ------------------------------------------------------------------------------

    def use_cta_group(self, group):
        """Note the .cta_group of a tcgen05 instruction; raises if the kernel has used the other one."""
        if self.cta_group not in (None, group):
            raise TensorMemoryError(
                f"tcgen05 instruction with .cta_group::{group} in a kernel that has used "
                f".cta_group::{self.cta_group}; use one of them in the whole kernel"
            )
        self.cta_group = group

    def check_allocation(self, columns):
        """Raise unless tcgen05.alloc may ask for this many columns now."""
        if columns < MIN_ALLOCATION or columns > COLUMNS or columns & (columns - 1):
            raise TensorMemoryError(
                f"tcgen05.alloc of {columns} columns; accepted are 32, 64, 128, 256 and 512"
            )
        if self.relinquished:
            raise TensorMemoryError(
                f"tcgen05.alloc of {columns} columns after tcgen05.relinquish_alloc_permit; allocate "
                "everything before the permit is given up"
            )

    def find(self, columns):
        """First column of a free block, or None when tcgen05.alloc would have to wait."""
        for start in range(0, COLUMNS - columns + 1, MIN_ALLOCATION):
            if not self.allocated[start : start + columns].any():
                return start
        return None

    def allocate(self, columns, issuer=None):
        """Allocate and return the first column. Raises TensorMemoryError when it is not allowed or full."""
        self.check_allocation(columns)
        start = self.find(columns)
        if start is None:
            raise TensorMemoryError(
                f"tcgen05.alloc of {columns} columns, but {self._blocks_text()}; free some first"
            )
        self.blocks[start], self.issuers[start] = columns, issuer
        self.allocated[start : start + columns] = True
        # A previous owner may have left any values in these columns.
        self.words[start : start + columns] = POISON
        self.written[start : start + columns] = False
        return start

    def deallocate(self, address, columns):
        """Free the block that tcgen05.alloc returned as address. Raises unless both arguments match."""
        lane, column = split_address(address)
        if lane or self.blocks.get(column) != columns:
            raise TensorMemoryError(
                f"tcgen05.dealloc of {columns} columns at lane {lane}, column {column}, but "
                f"{self._blocks_text()}; pass the address and the columns of the allocation"
            )
        del self.blocks[column]
        self.allocated[column : column + columns] = False

    def relinquish(self):
        """The CTA allocates no more (tcgen05.relinquish_alloc_permit)."""
        self.relinquished = True

    def check_freed(self):
        """Raise if the CTA exits with allocated columns: the next CTA on this SM could never allocate them."""
        if self.blocks:
            known = [self.issuers[column] for column in sorted(self.blocks)]
            lines = [
                f"\n  allocated by\n{issuer.where()}" for issuer in known if issuer is not None
            ]
            raise TensorMemoryError(
                f"{self.name} ends, but {self._blocks_text()}; every tcgen05.alloc needs its tcgen05.dealloc"
                f"{''.join(lines)}"
            )

    def _blocks_text(self):
        if not self.blocks:
            return "nothing is allocated"
        text = ", ".join(f"columns {c} to {c + n - 1}" for c, n in sorted(self.blocks.items()))
        return f"allocated are {text}"

    # --- access ----------------------------------------------------------------------------------

    def check_range(self, lane, column, lanes, columns, what):
        """Raise TensorMemoryError unless the block of words lies in tensor memory and is allocated."""
        end = column + columns
        if lane + lanes > LANES or end > COLUMNS:
            raise TensorMemoryError(
                f"{what} touches lanes {lane} to {lane + lanes - 1}, columns {column} to {end - 1}; tensor "
                f"memory has lanes 0 to {LANES - 1}, columns 0 to {COLUMNS - 1}"
            )
        if not self.allocated[column:end].all():
            first = column + int(np.argmin(self.allocated[column:end]))
            raise TensorMemoryError(
                f"{what} touches columns {column} to {end - 1}; column {first}{self._label(first)} is not "
                f"allocated ({self._blocks_text()})"
            )

    def read(self, lane, column, lanes, columns, what="read"):
        """View of words (columns, lanes) as uint32[column, lane]. Raises if any was never written."""
        self.check_range(lane, column, lanes, columns, what)
        block = (slice(column, column + columns), slice(lane, lane + lanes))
        written = self.written[block]
        if not written.all():
            self._unwritten(np.argwhere(~written) + (column, lane), what)
        return self.words[block]

    def write(self, lane, column, values, what="write"):
        """Write uint32 values[column, lane] to the block that starts at (lane, column)."""
        columns, lanes = values.shape
        self.check_range(lane, column, lanes, columns, what)
        block = (slice(column, column + columns), slice(lane, lane + lanes))
        self.words[block] = values
        self.written[block] = True

    def gather(self, lanes, columns, what="read"):
        """Words at index arrays (any one shape) of lanes and columns. Raises as read does."""
        self._check_scattered(lanes, columns, what)
        written = self.written[columns, lanes]
        if not written.all():
            columns, lanes = np.broadcast_arrays(columns, lanes)
            self._unwritten(np.stack((columns[~written], lanes[~written]), axis=1), what)
        return self.words[columns, lanes]

    def scatter(self, lanes, columns, values, what="write"):
        """Write values at index arrays of lanes and columns."""
        self._check_scattered(lanes, columns, what)
        self.words[columns, lanes] = values
        self.written[columns, lanes] = True

    def _check_scattered(self, lanes, columns, what):
        lane, column = int(lanes.min()), int(columns.min())
        self.check_range(
            lane, column, int(lanes.max()) - lane + 1, int(columns.max()) - column + 1, what
        )

    def _unwritten(self, places, what):
        column, lane = (int(i) for i in places[0])
        raise UninitializedRead(
            f"{what} of tensor memory lane {lane}, column {column}{self._label(column)}, which nobody has "
            f"written ({len(places)} such words); wait for the MMA or tcgen05.st that produces it"
        )

    def _label(self, column):
        name = self.labels.tmem_name(column)
        return f" ({name})" if name else ""
