"""Bits that PTX reserves and published kernels set."""

import numpy as np
import pytest

from cute_fa4.emulator.checks.ordering import Ordering
from cute_fa4.emulator.ptx.errors import EmulatorError
from tests.emulator.test_tcgen05 import IDESC, Bench, mma


def test_a_reserved_bit_is_ignored_with_one_note():
    """Bit 29 with kind::f16: cudnn-frontend's kernel for head dim 256 sets it. Level "ptx" refuses it."""
    bench = Bench()
    bench.tmem.allocate(64)
    r1 = IDESC | 64 // 8 << 17 | 128 // 16 << 24 | 1 << 29
    mma(bench, r1=r1)
    mma(bench, enable=1, r1=r1)
    assert [note.check for note in bench.machine.notes] == ["reserved_bit"]
    bench.finish()
    assert (bench.tmem.words[:64].view(np.float32) == 32.0).all()
    bench.machine.ordering = Ordering("ptx")
    with pytest.raises(EmulatorError, match="reserved bit 29 is 1"):
        mma(bench, r1=r1)
