"""tcgen05.mma.ws: D[M, N] += A B^T of one CTA, which uses all 128 lanes of D for any M.

    M     element (m, n) of D                          columns of D   A in tensor memory
    128   lane m, column n                             N              lanes 0 to 127
     64   lane m + 64 (n / (N/2)), column n % (N/2)    N / 2          each half of the lanes: for its columns
     32   lane m + 32 (n / (N/4)), column n % (N/4)    N / 4          each quarter of the lanes: for its columns

N is 64, 128 or 256. The zero-column mask makes columns of B count as zeros. It has one pattern per part of N with
separate lanes (M 128: one part, 64: two, 32: four):

    bits   0.. 8.. 16.. 24..   number of skipped bits at the beginning of the pattern of part 0, 1, 2, 3
    bits  32 33 34 35          1: the pattern of that part begins with a masked run
    bit   39                   0: nothing is masked
    bits  40..  48..           length of the masked, of the used runs, minus 1

PTX ISA, "tcgen05.mma.ws", "Layout E", "Layout G", "Zero-Column Mask Descriptor". The lengths follow its examples,
where they are swapped compared with its table of fields. Layouts as in CUTLASS's tmem_frg_ws. FlashMLA's sparse
decode relies on each part of the lanes reading a separate A, which combines two MMAs into one.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from cute_fa4.emulator.machine.operands import read_tensor_operand
from cute_fa4.emulator.machine.tensor_core import MatrixMultiply
from cute_fa4.emulator.ptx.errors import EmulatorError


@lru_cache(maxsize=256)
def masked_columns(bits, parts, n):
    """bool[n]: columns of B that a zero-column mask descriptor makes zero. EmulatorError if invalid."""
    name = f"zero-column mask descriptor 0x{bits:016x}"
    if bits >> 56 & 63:
        raise EmulatorError(
            f"{name}: column shift (bits 56 to 61) is {bits >> 56 & 63}; accepted: 0 (whether the mask counts shifted "
            "columns is not documented)"
        )
    if bits >> 36 & 7 or bits >> 62:
        raise EmulatorError(f"{name}: a reserved bit is set")
    out = np.zeros(n, bool)
    if bits >> 39 & 1:
        runs = (bits >> 40 & 255) + 1, (bits >> 48 & 255) + 1
        for part, columns in enumerate(np.split(out, parts)):
            begins = bool(bits >> 32 + part & 1)
            lengths = runs if begins else runs[::-1]
            period = np.repeat((begins, not begins), lengths)
            columns[:] = period[(np.arange(len(columns)) + (bits >> 8 * part & 255)) % len(period)]
    out.setflags(write=False)
    return out


@dataclass(frozen=True)
class WeightStationaryMultiply(MatrixMultiply):
    """One tcgen05.mma.ws; mask: its zero-column mask descriptor."""

    mask: int = 0

    def check(self):
        """Raise errors that do not depend on the data: called at issue."""
        masked_columns(self.mask, self.parts, self.descriptor.n)
        super().check()

    @property
    def parts(self):
        """Groups of lanes, each with separate columns."""
        return 128 // self.descriptor.m

    @property
    def _d_columns(self):
        return self.descriptor.n // self.parts

    @property
    def _lane_numbers(self):
        return np.arange(128)

    def _check_rows_of_a(self):
        """Any number of rows fits: each part of the lanes has a copy, or separate rows."""

    def execute(self):
        """Read the operands, multiply, and write D. All reads come before the first write."""
        shape, [cta] = self.descriptor, self.ctas
        b = np.array(self._read_b(cta))
        b[masked_columns(self.mask, self.parts, shape.n)] = 0
        with np.errstate(all="ignore"):
            product = np.hstack(
                [part @ self._part_of_a(cta, p).T for p, part in enumerate(np.split(b, self.parts))]
            )
            if shape.negate_a != shape.negate_b:
                np.negative(product, out=product)
            result = self._add(cta, product)
        self._write(cta, result)

    def _part_of_a(self, cta, part):
        if not self.a_in_tensor_memory:
            return self._read_a(cta)
        rows = self.descriptor.m
        return read_tensor_operand(
            cta, self.a + (part * rows << 16), self.descriptor.a, rows, f"A of {self.descriptor}"
        )
