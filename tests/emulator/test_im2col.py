"""TMA copies in im2col mode: maps and coordinates that CuTe makes, and raw PTX, against convolution's own unfolding."""

import cutlass
import cutlass.cute as cute
import numpy as np
import pytest
import torch
from cutlass.cute.nvgpu import cpasync, tcgen05
from cutlass.cute.runtime import make_fake_compact_tensor

from cute_fa4 import emulator
from cute_fa4.emulator.host import ptx_files
from cute_fa4.emulator.machine.tensor_map import decode_tensor_map
from cute_fa4.emulator.ptx.errors import TensorMapError

# --- maps of CuTe -------------------------------------------------------------------------------------

N, H, W, C = 2, 5, 8, 64
ROWS, FILTER = 8, 3  # one row of pixels a copy; 3 x 3, padding 1, stride 2 in H, dilation 2 in W


@cute.kernel
def _unfolding_kernel(atom: cute.CopyAtom, pixels: cute.Tensor, out: cute.Tensor):
    """CTA (m, k): 8 pixels of 64 channels at one place of the filter -> out[m, k]."""
    lane, _, _ = cute.arch.thread_idx()
    m, k, _ = cute.arch.block_idx()
    layout = cute.tile_to_shape(
        tcgen05.make_smem_layout_atom(tcgen05.SmemLayoutAtomKind.K_SW128, cutlass.BFloat16),
        (ROWS, C),
        (0, 1),
    )
    allocator = cutlass.memory.SmemAllocator()
    barrier = allocator.allocate_array(cutlass.Int64, 1)
    tile = allocator.allocate_tensor(cutlass.BFloat16, layout.outer, 1024, swizzle=layout.inner)
    if lane == 0:
        cute.arch.mbarrier_init(barrier, 1)
        cute.arch.mbarrier_init_fence()
        cute.arch.mbarrier_arrive_and_expect_tx(barrier, ROWS * C * 2)
    cute.arch.sync_threads()
    shared, tensor = cpasync.tma_partition(
        atom,
        0,
        cute.make_layout(1),
        cute.group_modes(tile, 0, 2),
        cute.group_modes(cute.local_tile(pixels, (ROWS, C), (m, k)), 0, 2),
    )
    cute.copy(atom, tensor, shared, tma_bar_ptr=barrier)
    cute.arch.mbarrier_wait(barrier, 0)
    for row in range(ROWS):
        out[m, k, row, lane] = tile[row, lane]
        out[m, k, row, lane + 32] = tile[row, lane + 32]


@cute.jit
def _unfolding(x: cute.Tensor, out: cute.Tensor):
    view = cute.make_layout(((W, H, N), C), stride=((C, W * C, H * W * C), 1))
    layout = cute.tile_to_shape(
        tcgen05.make_smem_layout_atom(tcgen05.SmemLayoutAtomKind.K_SW128, cutlass.BFloat16),
        (ROWS, C),
        (0, 1),
    )
    # Corners as of a convolution: -padding, and padding - (filter - 1) * dilation.
    info = cpasync.make_im2col_tma_atom(
        cpasync.CopyBulkTensorIm2ColG2SOp(), cute.make_tensor(x.iterator, view), layout, (ROWS, C),
        lower_corner_whd=(-2, -1), upper_corner_whd=(-2, -1), lower_padding_whd=(2, 1), upper_padding_whd=(2, 1),
        stride_whd=(1, 2), lower_srt=(0, 0), stride_srt=(2, 1),
    )  # fmt: skip
    _unfolding_kernel(info.atom, info.tma_tensor, out).launch(grid=(6, 9, 1), block=(32, 1, 1))


def test_cutes_maps_and_coordinates_unfold_a_tensor(monkeypatch):
    """All 9 places of the filter for all 48 pixels; and encode_im2col makes the map that the host code made."""
    from cute_fa4.emulator.instructions import bulk_operands

    maps = set()

    def decode(data):
        maps.add(data)
        return decode_tensor_map(data)

    monkeypatch.setattr(bulk_operands, "decode_tensor_map", decode)
    shapes = (N, H, W, C), (6, 9, ROWS, C)
    fakes = [
        make_fake_compact_tensor(cutlass.BFloat16, s, stride_order=(3, 2, 1, 0)) for s in shapes
    ]
    function = emulator.compile(_unfolding, *fakes)
    x = ptx_files.aligned_empty(*shapes[0], dtype=torch.bfloat16).copy_(torch.randn(shapes[0]))
    out = torch.zeros(shapes[1], dtype=torch.bfloat16)
    with emulator.use(checks="ptx"):
        function(x, out)
    folded = torch.nn.functional.unfold(
        x.permute(0, 3, 1, 2).float(), FILTER, dilation=(1, 2), padding=(1, 2), stride=(2, 1)
    )  # [n, channel and place of the filter, row and column of pixels]
    expected = folded.reshape(N, C, 9, 3, ROWS).permute(0, 3, 2, 4, 1).reshape(6, 9, ROWS, C)
    assert torch.equal(out.float(), expected)
    [made] = maps
    ours = ptx_files.encode_im2col(
        "bf16", x, (C, W, H, N), (2 * C, 2 * C * W, 2 * C * W * H), (-2, -1), (-2, -1), C, ROWS,
        element_strides=(1, 1, 2, 1), swizzle=128, l2_promotion=128,
    )  # fmt: skip
    words = np.frombuffer(made[:64], np.uint32).copy()
    words[2] &= ~np.uint32(2)  # set in all maps of CuTe's host code
    assert words.tobytes() == ours[:64]


# --- raw PTX ------------------------------------------------------------------------------------------

COPY = """
.version 8.8
.target sm_100a
.address_size 64
.extern .shared .align 1024 .b8 dyn[];
.visible .entry copy(.param .align 64 .b8 from[128], .param .align 64 .b8 to[128]) {{
    .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b16 %rs<4>; .reg .b64 %rd<4>;
    mov.u32 %r1, %tid.x; setp.ne.u32 %p1, %r1, 0; @%p1 bra END;
    mov.b32 %r2, dyn; mov.b64 %rd1, from; mov.b64 %rd2, to; mov.b16 %rs1, {offset};
    mbarrier.init.shared::cta.b64 [%r2], 1; fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], {nbytes};
    cp.async.bulk.prefetch.tensor.{rank}d.L2.global.im2col [%rd1, {{{first}}}], {{{offsets}}};
    cp.async.bulk.tensor.{rank}d.shared::cta.global.im2col.mbarrier::complete_tx::bytes
        [%r2+1024], [%rd1, {{{first}}}], [%r2], {{{offsets}}};
    WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r2], 0; @!%p1 bra WAIT;
    cp.async.bulk.tensor.{rank}d.global.shared::cta.im2col_no_offs.bulk_group [%rd2, {{{target}}}], [%r2+1024];
    cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
    END: ret;
}}
"""


def walked(sizes, lower, upper, steps, first, offsets, pixels):
    """Coordinates (n, d, h, w) where each pixel is read: an odometer, W fastest, then H, D, N."""
    low, last = lower, [s - 1 + u for s, u in zip(sizes[1:-1], upper, strict=True)]
    ranges = [list(range(a, b + 1, s)) for a, b, s in zip(low, last, steps, strict=True)]
    numbers = [r.index(f) for r, f in zip(ranges, first[1:-1], strict=True)]
    at = first[-1]
    for r, number in zip(ranges[::-1], numbers[::-1], strict=True):
        at = at * len(r) + number
    for place in range(at, at + pixels):
        out = []
        for r, o in zip(ranges, offsets, strict=True):
            place, i = divmod(place, len(r))
            out.append(r[i] + o)
        yield (place, *out[::-1])


@pytest.mark.parametrize(
    "sizes, lower, upper, steps, first, offsets",
    [
        ((16, 7, 3), (-1,), (1,), (1,), (8, 5, 1), (2,)),  # beyond the last n
        ((8, 6, 4, 2), (-1, -2), (-1, 0), (2, 1), (0, 1, -2, 0), (3, 1)),
        ((8, 4, 3, 5, 2), (-2, 0, -1), (1, -1, 0), (1, 1, 2), (0, 3, 1, 3, 0), (1, 2, 31)),
    ],
)
def test_pixels_are_read_one_after_the_other(sizes, lower, upper, steps, first, offsets):
    """Rank 3, 4, 5, from the middle on; what lies outside is zero; a store without offsets walks as well."""
    random, pixels, channels = np.random.default_rng(len(sizes)), 12, 8
    x = ptx_files.aligned_empty(*sizes[::-1], dtype=torch.float32)
    x.copy_(torch.from_numpy(random.normal(size=sizes[::-1])))
    strides = tuple(4 * int(np.prod(sizes[:i])) for i in range(1, len(sizes)))
    source = ptx_files.encode_im2col(
        "f32", x, sizes, strides, lower, upper, channels, pixels, (1, *steps, 1)
    )
    out = ptx_files.aligned_empty(2, 10, channels, dtype=torch.float32).zero_()
    target = ptx_files.encode_im2col(
        "f32", out, (channels, 10, 2), (4 * channels, 40 * channels), (0,), (0,), channels, pixels
    )
    text = COPY.format(
        rank=len(sizes), nbytes=pixels * channels * 4, first=", ".join(map(str, first)), offset=offsets[0],
        offsets=", ".join(("%rs1", *map(str, offsets[1:]))), target="0, 3, 0",
    )  # fmt: skip
    if len(sizes) != 3:  # the map of the target has rank 3
        text = text.replace(f"tensor.{len(sizes)}d.global", "tensor.3d.global")
    with ptx_files.reachable(x, out):
        ptx_files.load(text).launch(source, target, grid=1, block=32, shared=2048)
    rows = np.zeros((20, channels), np.float32)
    c = first[0]
    for number, place in enumerate(walked(sizes, lower, upper, steps, first, offsets, pixels)):
        if all(0 <= p < s for p, s in zip(place, sizes[:0:-1], strict=True)):
            rows[3 + number] = x[place][c : c + channels]
    assert np.array_equal(out.reshape(20, channels).numpy(), rows)


def test_what_im2col_copies_ask_for_is_checked():
    x = ptx_files.aligned_empty(2, 4, 6, 8, dtype=torch.float32).zero_()
    shape = "f32", x, (8, 6, 4, 2), (32, 192, 768)
    for message, arguments in (
        ("lower is .-129, 0.; accepted: 2 numbers from -128 to 127", ((-129, 0), (0, 0), 8, 4)),
        ("pixels is 1025; accepted: 1 to 1024", ((0, 0), (0, 0), 8, 1025)),
        ("the bounding box in W is 0 to -1", ((0, 0), (-6, 0), 8, 4)),
    ):
        with pytest.raises(TensorMapError, match=message):
            ptx_files.encode_im2col(*shape, *arguments)
    folded = ptx_files.encode_im2col(*shape, (0, 0), (0, 0), 8, 4)
    tiled = ptx_files.encode_tiled(*shape, (8, 1, 1, 1))
    good = dict(
        rank=4, nbytes=128, first="0, 0, 0, 0", offset=0, offsets="%rs1, 0", target="0, 0, 0, 0"
    )
    for message, source, changed in (
        ("from w 6 on; accepted: 0 to 5, its bounding box", folded, {"first": "0, 6, 0, 0"}),
        ("im2col offset 256 of a .*; accepted: 0 to 255", folded, {"offset": 256}),
        ("1 im2col offsets; the copy needs 2", folded, {"offsets": "%rs1"}),
        ("the tensor map of a tiled .*; accepted: maps of the mode of the copy", tiled, {}),
    ):
        kernel = ptx_files.load(COPY.format(**good | changed))
        with ptx_files.reachable(x), pytest.raises(Exception, match=message):
            kernel.launch(source, folded, grid=1, block=32, shared=2048)
