"""tcgen05.mma: D[M, N] += A[M, K] * B[N, K]^T, with D in tensor memory and operands gathered by descriptor.

matrix_descriptors.py has the layout of operands in shared memory, element_formats.py the element formats.

Layout of D (and of A in tensor memory); "left" and "right" are the two halves of the columns:

    cta_group 1, M 128    row r -> lane r
    cta_group 1, M  64    row r -> lane r/16 * 32 + r%16
    cta_group 2, M 256    row r -> CTA r/128, lane r%128
    cta_group 2, M 128    row r -> CTA r/64,  lane r%64 (left half of N), lane 64 + r%64 (right half, from
                          the same first column)
    B of a pair: rows n < N/2 from the even CTA, the rest from the odd one, at the same offsets.
    .ws, M 128, 64, 32: weight_stationary.py

Arithmetic model: products are exact and summed in float64 per instruction. The accumulator is added in float64, and
the result is rounded once to float32 (to nearest), or to float16, which is stored in the low half of a word (as in
CUTLASS's accumulators; tcgen05.ld.pack::16b joins two). Hardware does not document its order of summation and keeps
fewer bits, so results agree to about float32 precision, not bit for bit. Integers are exact.

PTX ISA, "Tensor Core 5th Generation".
"""

from dataclasses import dataclass

import numpy as np

from cute_fa4.emulator.machine.element_formats import ACCUMULATORS, NOTHING
from cute_fa4.emulator.machine.fast_paths import FORMATS, fast
from cute_fa4.emulator.machine.matrix_descriptors import (
    K_BYTES,
    InstructionDescriptor,
    decode_matrix,
    step_of_few,
)
from cute_fa4.emulator.machine.operands import (
    read_shared_operand,
    read_tensor_operand,
    shared_operand,
    tensor_operand,
)
from cute_fa4.emulator.machine.tensor_memory import COLUMNS, split_address
from cute_fa4.emulator.ptx.errors import EmulatorError


@dataclass(frozen=True)
class MatrixMultiply:
    """One tcgen05.mma, ready to execute.

    ctas        the CTA, or the even and the odd CTA of the pair
    d           tensor-memory address of D (lane 0), the same in both CTAs
    a, b        shared-memory descriptors; a is a tensor-memory address when a_in_tensor_memory
    accumulate  D = A*B + D * 2**-scale_log2, else D = A*B
    lanes       bool[128], False for lanes whose output is disabled; None: all enabled
    """

    descriptor: InstructionDescriptor
    ctas: tuple
    d: int
    a: int
    b: int
    a_in_tensor_memory: bool
    accumulate: bool
    scale_log2: int = 0
    lanes: object = None

    b_k_bytes = K_BYTES  # bytes of K that are read from B

    @property
    def tensor_blocks(self) -> tuple:
        """(what, tensor-memory address, columns) of other operands in tensor memory."""
        return ()

    def check(self):
        """Raise errors that do not depend on the data: called at issue."""
        shape = self.descriptor
        lane, column = split_address(self.d)
        if lane:
            raise EmulatorError(f"{shape}: D at lane {lane}; accepted: 0")
        if column + self._d_columns > COLUMNS:
            raise EmulatorError(
                f"{shape}: D at columns {column} to {column + self._d_columns - 1}; "
                f"tensor memory ends at column {COLUMNS - 1}"
            )
        if self.a_in_tensor_memory:
            self._check_rows_of_a()
            step = step_of_few(shape.m, len(self.ctas))
            if shape.n % step:
                raise EmulatorError(
                    f"{shape} with A in tensor memory: accepted are N in steps of {step} (as CUTLASS's atoms)"
                )
            if shape.a_mn_major:
                raise EmulatorError(f"{shape}: A in tensor memory is K-major; clear bit 15")
            if split_address(self.a)[0]:
                raise EmulatorError(f"{shape}: A at lane {split_address(self.a)[0]}; accepted: 0")
        else:
            decode_matrix(self.a, shape.a_mn_major)
        decode_matrix(self.b, shape.b_mn_major, self.b_k_bytes)

    def execute(self):
        """Read the operands, multiply, and write D. All reads come before the first write."""
        if not self._in_c():
            self._in_python()

    def _in_c(self):
        """The whole MMA in fast_paths.c, for floats of 8 bits or more and 128 rows of A in one CTA."""
        shape = self.descriptor
        if (
            type(self) is not MatrixMultiply
            or self._rows != 128
            or self.lanes is not None
            or shape.d != "f32"
        ):
            return False
        if not (shape.a.name in FORMATS and shape.b.name in FORMATS) or len(self.ctas) > 1:
            return False
        (cta,) = self.ctas
        tmem = cta.tmem
        if self.a_in_tensor_memory:
            a = tensor_operand(self.a, shape.a)
        else:
            a = shared_operand(cta.shared, self.a, shape.a, shape.a_mn_major, 128)
        b = shared_operand(cta.shared, self.b, shape.b, shape.b_mn_major, shape.n)
        return (
            a is not None
            and b is not None
            and fast.multiply(
                a, b, 1, tmem.words, tmem.written, tmem.allocated, split_address(self.d)[1], shape.n,
                self.accumulate, 2.0**-self.scale_log2, shape.negate_a != shape.negate_b,
            )
        )  # fmt: skip

    def _in_python(self):
        shape, pair = self.descriptor, len(self.ctas)
        b = [self._read_b(cta) for cta in self.ctas]
        b = b[0] if pair == 1 else np.concatenate(b)
        results = []
        with np.errstate(all="ignore"):
            for cta in self.ctas:
                a = self._read_a(cta)
                product = b @ a.T  # [n, row]: transposed like the words of tensor memory
                if shape.negate_a != shape.negate_b:
                    np.negative(product, out=product)
                results.append(self._add(cta, self._place(product)))
        for cta, result in zip(self.ctas, results, strict=True):
            self._write(cta, result)

    def _check_rows_of_a(self):
        if self._rows != 128:
            raise EmulatorError(
                f"{self.descriptor}: A in tensor memory with {self._rows} rows a CTA; accepted: 128 rows a CTA "
                "(the placement of fewer rows is not established)"
            )

    @property
    def _rows(self):
        return self.descriptor.m // len(self.ctas)

    @property
    def _d_columns(self):
        halves = len(self.ctas) == 2 and self._rows == 64
        return self.descriptor.n // 2 if halves else self.descriptor.n

    def _read_b(self, cta):
        shape = self.descriptor
        rows = shape.n // len(self.ctas)
        return read_shared_operand(cta, self.b, shape.b, shape.b_mn_major, rows, self.b_k_bytes)

    def _read_a(self, cta):
        shape = self.descriptor
        if self.a_in_tensor_memory:
            return read_tensor_operand(cta, self.a, shape.a, self._rows, f"A of {shape}")
        return read_shared_operand(cta, self.a, shape.a, shape.a_mn_major, self._rows)

    def _place(self, product):
        """product[n, row] -> [column of D, position in self._lane_numbers]."""
        if len(self.ctas) == 2 and self._rows == 64:
            return np.hstack(np.split(product, 2))
        return product

    @property
    def _lane_numbers(self):
        if len(self.ctas) == 1 and self._rows == 64:
            row = np.arange(64)
            return row // 16 * 32 + row % 16
        return np.arange(128)

    def _add(self, cta, product):
        """float64 product + accumulator -> bits to write, uint32 of the same shape."""
        shape = self.descriptor
        if self.accumulate:
            column = split_address(self.d)[1]
            what = f"D of {shape}"
            if product.shape[1] == 128:
                old = cta.tmem.read(0, column, 128, self._d_columns, what)
            else:
                old = cta.tmem.gather(*self._d_index(), what)
            old = ACCUMULATORS[shape.d](old)
            product += old * 2.0**-self.scale_log2 if self.scale_log2 else old
        if shape.d == "s32":
            if shape.saturate:
                product = np.clip(product, -(2.0**31), 2.0**31 - 1)
            return product.astype(np.int64).astype(np.uint32)
        if shape.d == "f16":
            return product.astype(np.float16).view(np.uint16) | NOTHING
        return product.astype(np.float32).view(np.uint32)

    def _write(self, cta, result):
        column = split_address(self.d)[1]
        what = f"D of {self.descriptor}"
        if result.shape[1] == 128 and self.lanes is None:
            cta.tmem.write(0, column, result, what)
            return
        lanes, columns = self._d_index()
        if self.lanes is not None:
            enabled = self.lanes[self._lane_numbers]
            lanes, columns, result = lanes[:, enabled], columns[:, enabled], result[:, enabled]
        if lanes.size:
            cta.tmem.scatter(lanes, columns, result, what)

    def _d_index(self):
        columns = split_address(self.d)[1] + np.arange(self._d_columns)
        columns, lanes = np.meshgrid(columns, self._lane_numbers, indexing="ij")
        return lanes, columns
