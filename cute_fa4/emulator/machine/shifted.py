"""tcgen05.mma with .ashift: the product of A with its rows shifted down by one, as in tcgen05.shift.

    row of D     0 .. 30   31                     32 .. 62   ...   126   127
    row of A     1 .. 31   32 or 31: see below    33 .. 63   ...   127   127

The ISA says that the last row in tensor memory stays; tcgen05.shift keeps the last row of each 32 lanes. Whether
.ashift does the same is not documented. So if A's rows 31 and 32 (63 and 64, 95 and 96) differ, row 31 (63, 95) of
D becomes NaN, or the smallest integer, which reveals kernels that use it.

PTX ISA, "tcgen05.mma", .ashift: A in tensor memory, M 128 or 256.
"""

from dataclasses import dataclass

import numpy as np

from cute_fa4.emulator.machine.tensor_core import MatrixMultiply
from cute_fa4.emulator.ptx.errors import EmulatorError

_LAST = np.array([31, 63, 95])
_SOURCE = np.minimum(np.arange(128) + 1, 127)
UNKNOWN_INTEGER = -(2**31)


@dataclass(frozen=True)
class ShiftedMultiply(MatrixMultiply):
    """One tcgen05.mma with .ashift."""

    def check(self):
        """Raise errors that do not depend on the data: called at issue."""
        if not self.a_in_tensor_memory or self._rows != 128:
            where = "tensor" if self.a_in_tensor_memory else "shared"
            raise EmulatorError(
                f"{self.descriptor} with .ashift: A of {self._rows} rows a CTA in {where} memory; accepted: 128 rows a "
                "CTA in tensor memory"
            )
        super().check()

    def _read_a(self, cta):
        rows = super()._read_a(cta)
        shifted = rows[_SOURCE]
        unknown = _LAST[(rows[_LAST] != rows[_LAST + 1]).any(axis=1)]
        shifted[unknown] = np.nan
        return shifted

    def _add(self, cta, product):
        if self.descriptor.kind != "i8":
            return super()._add(cta, product)
        unknown = np.isnan(product)
        out = super()._add(cta, np.nan_to_num(product))
        out[unknown] = np.uint32(UNKNOWN_INTEGER & 0xFFFFFFFF)
        return out
