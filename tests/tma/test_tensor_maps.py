"""Tensor maps of launches: a load begins at its tensor, and may touch 128 KiB only where the tensor has them."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from unittest import mock

import pytest
import torch

from cute_fa4 import emulator
from cute_fa4.calls.operands.strides import ROW_STRIDE_LIMIT_BYTES, _in_row_space
from cute_fa4.compiler import functions
from cute_fa4.emulator.machine.tensor_map import TENSOR_MAP_BYTES, WIDE_REACH, decode_tensor_map
from cute_fa4.sm100.operands import kv_buffer, tma
from cute_fa4.tma.tensor_maps import LAP_BYTES
from tests.serving.batches import (
    Batch,
    assert_agrees,
    dense_kv,
    dense_q,
    packed_kv,
    packed_q,
    paged_kv,
    run,
)


class Stopped(Exception):
    """Carries the launch out of the emulator before it executes anything."""


@contextmanager
def maps_of_the_launch():
    """Yields a list that is filled with the tensor maps of the launch; nothing is executed."""
    found = []

    def keep(program, *, params, **_others):
        for param in program.kernel.params:
            if param.nbytes == TENSOR_MAP_BYTES:
                end = param.offset + TENSOR_MAP_BYTES
                found.append(decode_tensor_map(params[param.offset : end]))
        raise Stopped

    with mock.patch("cute_fa4.emulator.run.launch.execute_grid", keep), pytest.raises(Stopped):
        yield found


def hull_bytes(tensor) -> int:
    """Bytes from the first to the last element."""
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def first_and_last(kv: dict) -> dict:
    """The same with K from the first byte of one piece of memory, and V up to its last byte."""
    k, v = kv["k"].contiguous(), kv["v"].contiguous()
    storage = torch.cat([k.flatten(), v.flatten()])
    return kv | dict(k=storage[: k.numel()].view(k.shape), v=storage[k.numel() :].view(v.shape))


def packed_to_the_end(batch: Batch) -> dict:
    return packed_kv(batch) | dict(k=torch.cat(batch.k), v=torch.cat(batch.v))


def dense_to_the_end(batch: Batch) -> dict:
    kv, longest = dense_kv(batch), max(batch.keys)
    return kv | dict(k=kv["k"][:, :longest], v=kv["v"][:, :longest])


# Depths that are not multiples of 64; every page size with a special copy path, and its neighbors.
LAYOUTS = [
    (72, "packed", packed_q, packed_to_the_end),
    (80, "lengths", dense_q, dense_to_the_end),
    *(
        (depth, f"pages of {size}", packed_q, partial(paged_kv, page_size=size))
        for depth, size in zip(
            (96, 72, 80, 96, 72, 80, 96), (8, 16, 32, 64, 128, 256, 512), strict=True
        )
    ),
]


@pytest.mark.parametrize(
    "depth, store_q, store_kv",
    [(depth, *stores) for depth, _, *stores in LAYOUTS],
    ids=[f"{depth} {name}" for depth, name, *_ in LAYOUTS],
)
def test_k_is_the_first_byte_and_v_the_last(depth, store_q, store_kv):
    # The emulator refuses a load whose map extends outside its tensor. The first sequence ends less than a tile after
    # the first row, where a shifted base would lie before the tensor; the other at the last row.
    batch = Batch.draw([2, 1], [5, 140], depth=depth)
    assert_agrees(batch, *run(store_q(batch), first_and_last(store_kv(batch))))


# Rows of 256 bytes: 127.75 KiB, and one row more.
@pytest.mark.parametrize("rows, wide", [(511, False), (512, True)])
def test_maps_end_where_their_tensors_end(rows, wide):
    """The host code sets bit 85 for a map of 128 KiB or more, so the extents of clipped loads must be exact."""
    batch = Batch.draw([1], [rows], heads=(1, 1), depth=128)
    q, kv = packed_q(batch), first_and_last(packed_to_the_end(batch))
    with maps_of_the_launch() as maps:
        run(q, kv, causal=True)
    by_address = {m.address: m for m in maps}
    for tensor in (q["q"], kv["k"], kv["v"]):
        found = by_address[tensor.data_ptr()]
        assert (found.reach == WIDE_REACH) == (hull_bytes(tensor) >= WIDE_REACH)
    assert (by_address[kv["k"].data_ptr()].reach == WIDE_REACH) == wide


def test_the_shifted_base_is_refused(own_kernels, monkeypatch):
    """The clipped loads that stores still are: a base one tile before the tensor."""

    def view(tensor, space):
        return tma.clipped_store_view(tensor, space, 128, 64, 64)

    def place(row, valid, head):
        return 128 - valid, (row + valid, head)

    monkeypatch.setattr(tma, "clipped_load_view", view)
    monkeypatch.setattr(kv_buffer, "clipped_load", place)
    monkeypatch.setattr(functions, "_functions", {})
    batch = Batch.draw([1], [140])
    with pytest.raises(emulator.IllegalAccess, match="begin the map of a load at its tensor"):
        run(packed_q(batch), packed_kv(batch))


def test_rows_too_far_apart_for_the_lap_are_refused():
    far = torch.empty_strided((2, 1, 64), (1 << 33, 64, 1), dtype=torch.bfloat16, device="meta")
    with pytest.raises(ValueError, match=r"k: strides .* accepted: less than 17179869184"):
        _in_row_space("k", far)
    near = torch.empty_strided(
        (2, 1, 64), ((1 << 33) - 8, 64, 1), dtype=torch.bfloat16, device="meta"
    )
    assert _in_row_space("k", near)[1] == 0
    assert ROW_STRIDE_LIMIT_BYTES == LAP_BYTES
