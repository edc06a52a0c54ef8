"""tcgen05.mma.sp: MMAs that store half of A's elements along K, selected by metadata in tensor memory.

A stored row has 32 bytes and represents twice as many elements of K; B has 64 bytes of K. Each 4 bits of metadata
give the positions of the stored elements of one group, as two 2-bit indices, the lower one first:

    elements       group of K   kept   metadata
    tf32            2           1      0100: the first, 1110: the second
    16 and 8 bits   4           2      0100 1000 1100 1001 1101 1110: 0 1, 0 2, 0 3, 1 2, 1 3, 2 3
    packed 4 bits   8           4      the same for pairs of neighbors

Position of the metadata of row m (column: relative to the address; other bits belong to other rows):

    kind                        K       lane                            column     bits
    f16, tf32                   32, 16  16 (m/16) + m%8 + 8 (half of K) selector   16 (m/8%2) and 15 more
    8 bits and narrower         64      m                               half of K  0 to 31
    packed 4 bits               128     m                               half of K  0 to 31

Each CTA of a pair has the metadata of its own 128 rows of A. In .ws MMAs with fewer rows each part of the lanes has
separate metadata, as for A in tensor memory. Other MMAs with fewer than 128 rows are refused, because their layout
is not documented. A scale covers twice as many elements of K as in a dense MMA.

PTX ISA, "tcgen05.mma: sparse matrices"; CUTLASS's fragments of metadata for SM100 (tmem_e_frg) and its compressor.
"""

import dataclasses
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from cute_fa4.emulator.machine.block_scale import ScaledMultiply, decode_scaled_instruction
from cute_fa4.emulator.machine.matrix_descriptors import K_BYTES, decode_instruction
from cute_fa4.emulator.machine.tensor_core import MatrixMultiply
from cute_fa4.emulator.machine.tensor_memory import COLUMNS, split_address
from cute_fa4.emulator.machine.weight_stationary import WeightStationaryMultiply
from cute_fa4.emulator.ptx.errors import EmulatorError

# Metadata of a group -> (first, second) index; -1 for invalid codes.
_PAIRS = np.full((16, 2), -1)
_PAIRS[[0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b1110]] = (
    (0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3),
)  # fmt: skip
_SINGLES = np.full((16, 1), -1)
_SINGLES[[0b0100, 0b1110]] = ((0,), (1,))
_PAIRS_OF_NEIGHBOURS = np.where(
    np.repeat(_PAIRS, 2, axis=1) < 0, -1, np.repeat(2 * _PAIRS, 2, axis=1) + (0, 1, 0, 1)
)
# elements of K in a group -> metadata -> indices of the kept elements
_KEPT = {2: _SINGLES, 4: _PAIRS, 8: _PAIRS_OF_NEIGHBOURS}


def _of_sparse(bits, kind, dense):
    """(descriptor of the dense product, its bits without sparsity) -> sparse descriptor, sparsity selector."""
    if not bits >> 2 & 1:
        raise EmulatorError(
            f"tcgen05.mma.sp instruction descriptor 0x{bits:08x}: sparsity (bit 2) is 0; accepted: 1"
        )
    selector, accepted = bits & 3, (0, 1) if kind in ("f16", "tf32") else (0,)
    if selector not in accepted:
        raise EmulatorError(
            f"tcgen05.mma.sp instruction descriptor 0x{bits:08x}, kind::{kind}: sparsity selector (bits 0 and 1) is "
            f"{selector}; accepted: {', '.join(map(str, accepted))}"
        )
    return dataclasses.replace(dense, k=2 * dense.k), selector


def _without_sparsity(bits):
    return bits & ~7


@lru_cache(maxsize=1024)
def decode_sparse_instruction(bits, kind, cta_group, weight_stationary=False):
    """Instruction descriptor -> (InstructionDescriptor, sparsity selector). Raises EmulatorError naming the field."""
    dense = decode_instruction(_without_sparsity(bits), kind, cta_group, weight_stationary)
    return _of_sparse(bits, kind, dense)


@lru_cache(maxsize=1024)
def decode_sparse_scaled_instruction(bits, kind, vector, cta_group):
    """Instruction descriptor -> (ScaledDescriptor, sparsity selector). Raises EmulatorError naming the field."""
    dense = decode_scaled_instruction(_without_sparsity(bits), kind, vector, cta_group)
    return _of_sparse(bits, kind, dataclasses.replace(dense, block=2 * dense.block))


@dataclass(frozen=True)
class _Metadata:
    """Common part of sparse MMAs. metadata: its tensor-memory address; selector: the column of a pair."""

    metadata: int = 0
    selector: int = 0

    b_k_bytes = 2 * K_BYTES

    @property
    def tensor_blocks(self):
        return (*super().tensor_blocks, ("metadata", self.metadata + self.selector, self._columns))

    def check(self):
        """Raise errors that do not depend on the data: called at issue."""
        super().check()
        lane, column = split_address(self.metadata)
        if lane or column % 2 or column + 2 > COLUMNS:
            raise EmulatorError(
                f"{self.descriptor}, sparse: metadata at lane {lane}, column {column}; accepted: lane 0, even columns "
                f"below {COLUMNS}"
            )

    @property
    def _group(self):
        return {4: 2, 2: 4}.get(self.descriptor.a.itemsize, 8 if self._packed else 4)

    @property
    def _packed(self):
        return getattr(self.descriptor, "packed", False)

    @property
    def _columns(self):
        """Columns of metadata: one, whose halves belong to rows m and m + 8, or two."""
        return 1 if self.descriptor.a.itemsize > 1 else 2

    def _expanded(self, cta, values, part=0):
        """Kept elements [row, K / 2] -> [row, K], zeros elsewhere."""
        rows, group = len(values), self._group
        codes = self._codes(cta, rows, part)  # [row, group]
        kept = _KEPT[group][codes]
        if kept.min() < 0:
            row, number = np.argwhere(kept.min(axis=2) < 0)[0]
            accepted = ", ".join(
                f"{c:04b}" for c in np.flatnonzero(_KEPT[group].min(axis=1) >= 0).tolist()
            )
            raise EmulatorError(
                f"{self.descriptor}: sparsity metadata of row {row}, elements {group * number} to "
                f"{group * number + group - 1} of K is {codes[row, number]:04b}; accepted: {accepted}"
            )
        out = np.zeros((rows, codes.shape[1], group))
        np.put_along_axis(out, kept, values.reshape(kept.shape), axis=2)
        return out.reshape(rows, -1)

    def _codes(self, cta, rows, part):
        """Metadata [row, group] of 4 bits each."""
        [(_, address, columns)] = self.tensor_blocks[-1:]
        column = split_address(address)[1]
        what = f"sparsity metadata of {self.descriptor}"
        words = cta.tmem.read(part * rows, column, rows, columns, what)
        if columns == 1:
            # [16-row group, half of K, row % 8] of two halves -> [16-row group, row / 8 % 2, row % 8, half of K]
            halves = np.ascontiguousarray(words[0]).view(np.uint16).reshape(rows // 16, 2, 8, 2)
            raw = np.ascontiguousarray(halves.transpose(0, 3, 2, 1)).reshape(rows, 2)
        else:
            raw = np.ascontiguousarray(words.T)
        each = raw.view(np.uint8)
        return np.stack((each & 15, each >> 4), axis=2).reshape(rows, -1)


def _refuse_few_rows(multiply):
    if multiply._rows != 128:
        raise EmulatorError(
            f"{multiply.descriptor}, sparse, with {multiply._rows} rows of A a CTA; accepted: 128 (where the metadata "
            "of fewer rows lies is not established)"
        )


@dataclass(frozen=True)
class SparseMultiply(_Metadata, MatrixMultiply):
    """One tcgen05.mma.sp."""

    def check(self):
        _refuse_few_rows(self)
        super().check()

    def _read_a(self, cta):
        return self._expanded(cta, super()._read_a(cta))


@dataclass(frozen=True)
class SparseScaledMultiply(_Metadata, ScaledMultiply):
    """One block-scaled tcgen05.mma.sp."""

    def _a_elements(self, cta):
        return self._expanded(cta, super()._a_elements(cta))


@dataclass(frozen=True)
class SparseWeightStationaryMultiply(_Metadata, WeightStationaryMultiply):
    """One tcgen05.mma.ws.sp."""

    def _part_of_a(self, cta, part):
        return self._expanded(cta, super()._part_of_a(cta, part), part)
