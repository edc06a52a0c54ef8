"""ByteShadow against a plain array of one number per byte."""

import numpy as np
import pytest

from cute_fa4.emulator.checks.shadow import CHUNK, ByteShadow

SIZE = 2048


def byte_writers(shadow):
    """The writer of every byte."""
    numbers = np.repeat(shadow.coarse.writer, CHUNK)
    if shadow.fine is not None:
        for slot in range(shadow._slots):
            chunk = shadow._chunk_of_slot[slot]
            numbers[chunk * CHUNK : (chunk + 1) * CHUNK] = shadow.fine.writer[
                slot * CHUNK : (slot + 1) * CHUNK
            ]
    return numbers


@pytest.mark.parametrize("seed", range(5))
def test_the_last_writer_of_every_byte(seed):
    """300 random accesses of all shapes: enough that most chunks are refined, and the fine part grows twice."""
    random = np.random.default_rng(seed)
    shadow, expected = ByteShadow(SIZE), np.zeros(SIZE, np.int64)
    for number in range(1, 301):
        kind = random.integers(3)
        if kind == 0:
            nbytes = int(random.choice([1, 2, 4, 8, 16, 32]))
            offsets = random.integers(0, SIZE // nbytes, 32) * nbytes
            parts = shadow.items(offsets, nbytes)
            touched = (offsets[:, None] + np.arange(nbytes)).ravel()
        elif kind == 1:
            start = int(random.integers(0, SIZE - 200))
            nbytes = int(random.integers(1, 200))
            if random.integers(2):
                start, nbytes = start // CHUNK * CHUNK, -(-nbytes // CHUNK) * CHUNK
            parts, touched = shadow.span(start, nbytes), np.arange(start, start + nbytes)
        else:
            starts = random.integers(0, SIZE // 64, 4) * 64
            nbytes = int(random.choice([24, 32, 48]))
            parts = shadow.rows(starts, nbytes)
            touched = (starts[:, None] + np.arange(nbytes)).ravel()
        for part in parts:
            part[0].writer[part[1]] = number
        expected[touched] = number
        first = shadow.offset(parts[0], parts[0][0].writer[parts[0][1]], number)
        assert expected[first] == number
    assert (byte_writers(shadow) == expected).all()


def test_neighbouring_bytes_are_different_memory():
    shadow = ByteShadow(SIZE)
    for number, offset in enumerate((5, 6), start=1):
        ((part, at, fine),) = shadow.items(np.array([offset]), 1)
        assert fine and (part.writer[at] == 0).all()
        part.writer[at] = number
