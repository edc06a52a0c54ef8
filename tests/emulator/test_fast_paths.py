"""fast_paths.c and the Python code of its callers are equivalent: same bits, same counts, same reports.

The law: with every function of the C file refusing, so that everything goes the long way, nothing that a user can see
changes. Refusing is what the functions do by contract where anything is unusual.
"""

import itertools

import numpy as np
import pytest
import torch

from cute_fa4 import emulator, flash_attn_func
from cute_fa4.emulator.machine import matrix_descriptors, tensor_core
from cute_fa4.emulator.machine.fast_paths import fast
from cute_fa4.emulator.machine.memory import SharedMemory
from cute_fa4.emulator.machine.tensor_memory import TensorMemory
from cute_fa4.emulator.ptx.errors import EmulatorError
from tests.emulator.checks.planted_bugs import BUGS

REFUSALS = {
    "uniform": -1, "shared_offsets": -1, "load_tensor": 0, "store_tensor": 0, "touch_index": 0, "touch_block": 0,
    "touch_items": 0, "multiply": 0,
}  # fmt: skip


@pytest.fixture
def in_python(monkeypatch):
    """in_python(): from now on C does nothing."""

    def refuse():
        for name, answer in REFUSALS.items():
            getattr(fast, name)
            monkeypatch.setattr(fast, name, lambda *_, answer=answer: answer)

    return refuse


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "_"))
def test_reports_are_the_same_to_the_letter(bug, in_python):
    def reported():
        texts = []
        for level, fixed in itertools.product(("ptx", "hardware"), (False, True)):
            try:
                _, result = bug.launch(fixed=fixed, checks=level)
                texts.append((result.instructions, result.opcodes, result.notes))
            except EmulatorError as error:
                texts.append((type(error), str(error)))
        return texts

    before = reported()
    in_python()
    assert reported() == before


@pytest.mark.filterwarnings("ignore::cute_fa4.interface.EmulatorWarning")
@pytest.mark.parametrize("level", ["ptx", None])
def test_a_launch_of_attention_is_the_same(level, in_python):
    """Two query tiles, three key tiles, one masked: every role works (checks/test_attention_kernel.py)."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 300, 1, 128, generator=generator).bfloat16() for _ in range(3))

    def seen():
        with emulator.use(checks=level, mode="hostile", seed=1) as run:
            out = flash_attn_func(q, k, v, causal=True)
        return out, run.instructions, run.opcodes, run.counters, run.notes

    out, *counts = seen()
    in_python()
    again, *counts_again = seen()
    assert torch.equal(out, again) and counts == counts_again


class Cta:
    """Shared and tensor memory, all written, of random bits; exponents are small, so that few are infinite."""

    def __init__(self, random):
        self.shared, self.tmem = SharedMemory(0, 200 * 1024), TensorMemory()
        self.shared.bytes[:] = random.integers(0, 256, self.shared.bytes.size) & 0xBF
        self.shared.written[:] = True
        self.tmem.allocate(512)
        numbers = random.standard_normal(self.tmem.words.shape).astype(np.float32)
        self.tmem.words[:] = numbers.view(np.uint32)
        self.tmem.written[:] = True


# Both operand formats of each kind with either side K-major and MN-major; a width that is one block of the C loop, and
# the widest. A in tensor memory, D added or not and scaled, negated operands: in turn, all of them in each kind.
SHAPES = [
    (kind, a, b, majors, n, other)
    for kind, codes in (("f16", (0, 1)), ("tf32", (2,)), ("f8f6f4", (0, 1)))
    for a, b in itertools.product(codes, codes)
    for majors in (((0, 0),) if kind == "tf32" else ((0, 0), (0, 1), (1, 0), (1, 1)))
    for n, other in ((16, 0), (16, 3), (256, 1), (256, 6), (16, 5), (16, 7))
]


def test_products_have_the_same_bits():
    random = np.random.default_rng(0)
    for kind, a, b, (a_mn, b_mn), n, other in SHAPES:
        in_tensor_memory = bool(other & 1) and not a_mn
        negate, accumulate = other >> 1 & 1, other >> 2
        bits = 1 << 4 | a << 7 | b << 10 | negate << 13 | a_mn << 15 | b_mn << 16 | n // 8 << 17
        shape = matrix_descriptors.decode_instruction(bits | 128 // 16 << 24, kind, 1)
        # 128-byte swizzle, strides of 1 and 2 KiB.
        matrix = lambda start: start >> 4 | 2048 >> 4 << 16 | 1024 >> 4 << 32 | 1 << 46 | 2 << 61
        cta = Cta(random)
        product = tensor_core.MatrixMultiply(
            shape, (cta,), 0, 300 if in_tensor_memory else matrix(2048), matrix(65536), in_tensor_memory,
            bool(accumulate), 0 if kind == "f8f6f4" else accumulate * 3,
        )  # fmt: skip
        old = cta.tmem.words.copy()
        assert product._in_c()
        found = cta.tmem.words.copy()
        cta.tmem.words[:] = old
        product._in_python()
        same = (found == cta.tmem.words) | np.isnan(found.view(np.float32)) & np.isnan(
            cta.tmem.words.view(np.float32)
        )
        assert same.all(), (kind, a, b, a_mn, b_mn, n, other)
