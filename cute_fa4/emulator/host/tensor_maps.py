"""Tensor maps from the parameters of the driver: encode_tiled and encode_im2col of ptx_files, and the driver's codes.

encode_tiled("bf16", x, sizes, strides, box)      -> 128 bytes, by names and tensors
encode_as_driver(9, 2, address, ...)              -> the same from the numbers of cuTensorMapEncodeTiled
"""

import struct

import numpy as np

from cute_fa4.emulator.machine.im2col import IM2COL, MAX_PIXELS
from cute_fa4.emulator.machine.memory import Allocation
from cute_fa4.emulator.machine.tensor_map import WIDE_REACH, decode_tensor_map
from cute_fa4.emulator.ptx.errors import TensorMapError

# CUtensorMapDataType by name: (code in the map, bytes of an element, tf32 flag)
_DTYPES = {
    "u8": (0, 1, 0), "u16": (1, 2, 0), "u32": (2, 4, 0), "s32": (3, 4, 0), "u64": (4, 8, 0), "s64": (5, 8, 0),
    "f16": (6, 2, 0), "f32": (7, 4, 0), "f32_ftz": (8, 4, 0), "f64": (9, 8, 0), "bf16": (10, 2, 0),
    "tf32": (7, 4, 1), "tf32_ftz": (8, 4, 1),
}  # fmt: skip
# CUtensorMapDataType: the name of each number.
DRIVER_DTYPES = (
    "u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f64", "bf16", "f32_ftz", "tf32", "tf32_ftz",
)  # fmt: skip
TENSOR_MAP_BYTES = 128
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_PROMOTIONS = {0: 0, 64: 1, 128: 2, 256: 3}


def memory_of(argument, name):
    """The Allocation of a torch tensor or NumPy array, or None for something else."""
    if isinstance(argument, np.ndarray):
        low, high = np.lib.array_utils.byte_bounds(argument)
        title = f"the array {argument.shape} {argument.dtype} ({name})"
        return Allocation(low, high - low, title, keep=argument)
    if not hasattr(argument, "data_ptr"):
        return None
    if argument.device.type != "cpu":
        raise ValueError(f"{name}: a tensor on {argument.device}; the emulator takes CPU tensors")
    last = sum((n - 1) * s for n, s in zip(argument.shape, argument.stride(), strict=True))
    nbytes = (last + 1) * argument.element_size() if argument.numel() else 0
    title = (
        f"the tensor {tuple(argument.shape)} {str(argument.dtype).removeprefix('torch.')} ({name})"
    )
    return Allocation(argument.data_ptr(), nbytes, title, keep=argument)


def encode_tiled(
    dtype, address, sizes, strides, box, element_strides=None, swizzle=0, l2_promotion=0, nan_fill=False
):  # fmt: skip
    """The 128 bytes that cuTensorMapEncodeTiled returns for the same parameters (without interleave).

    dtype    "bf16", "f16", "f32", "u8", ...: CUtensorMapDataType         address  a tensor, an array, or a number
    sizes    elements, from the contiguous dimension on                    strides  bytes, from dimension 1 on
    box      elements that a copy moves                                    swizzle  0, 32, 64 or 128 bytes
    element_strides  step between copied elements; None: 1      l2_promotion  0, 64, 128 or 256
    Raises TensorMapError where cuTensorMapEncodeTiled refuses: the parameter, its value, what is accepted.
    """
    accept = _accept("encode_tiled")
    accept(1 <= len(sizes) <= 5, "the number of sizes", len(sizes), "1 to 5")
    w = _common_words(
        accept, dtype, address, sizes, strides, element_strides, swizzle, l2_promotion, nan_fill
    )
    accept(len(box) == len(sizes), "the number of box sizes", len(box), f"{len(sizes)}")
    accept(all(1 <= n <= 256 for n in box), "box", tuple(box), "1 to 256 each")
    w[13] |= (box[0] - 1) << 24
    for i, extent in enumerate(box[1:]):
        w[14] |= (extent - 1) << 8 * i
    return _checked(w)


def encode_as_driver(dtype, rank, address, sizes, strides, box, steps, *codes):
    """encode_tiled with the parameters of cuTensorMapEncodeTiled: codes of types and modes, arrays of `rank` numbers.

    codes  interleave, swizzle, l2Promotion, oobFill
    Raises TensorMapError for codes without a meaning here: interleave, types of less than 8 bits, swizzled atoms.
    """
    accept = _accept("cuTensorMapEncodeTiled")
    interleave, swizzle, promotion, fill = (int(code) for code in codes)
    accept(
        int(dtype) < len(DRIVER_DTYPES),
        "tensorDataType",
        int(dtype),
        f"0 to {len(DRIVER_DTYPES) - 1}",
    )
    accept(not interleave, "interleave", interleave, "0")
    accept(swizzle < len(_SWIZZLES), "swizzle", swizzle, f"0 to {len(_SWIZZLES) - 1}")

    def numbers(array, n):
        return [int(array[i]) for i in range(n)]

    rank = int(rank)
    address = 0 if address is None else int(address)  # ctypes has None for a null pointer
    return encode_tiled(
        DRIVER_DTYPES[int(dtype)], address, numbers(sizes, rank), numbers(strides, rank - 1), numbers(box, rank),
        numbers(steps, rank), list(_SWIZZLES)[swizzle], list(_PROMOTIONS)[promotion], bool(fill),
    )  # fmt: skip


def encode_im2col(
    dtype, address, sizes, strides, lower, upper, channels, pixels, element_strides=None, swizzle=0, l2_promotion=0,
    nan_fill=False,
):  # fmt: skip
    """The 128 bytes that cuTensorMapEncodeIm2col returns for the same parameters (without interleave).

    sizes     of C, W, if present H and D, and N                             channels  copied per pixel
    lower, upper  corners of the bounding box in W, H, D: relative to 0 and to the last element
    pixels    rows of a copy                                                the others as in encode_tiled
    Raises TensorMapError where cuTensorMapEncodeIm2col refuses: the parameter, its value, what is accepted.
    """
    accept = _accept("encode_im2col")
    spatial = len(sizes) - 2
    accept(1 <= spatial <= 3, "the number of sizes", len(sizes), "3 to 5")
    bits = 16 // spatial
    accept(1 <= channels <= 256, "channels", channels, "1 to 256")
    accept(1 <= pixels <= MAX_PIXELS, "pixels", pixels, f"1 to {MAX_PIXELS}")
    w = _common_words(
        accept, dtype, address, sizes, strides, element_strides, swizzle, l2_promotion, nan_fill
    )
    for name, corner, low in (("lower", lower, 0), ("upper", upper, 16)):
        most = 1 << bits - 1
        accept(len(corner) == spatial and all(-most <= at < most for at in corner), name, tuple(corner),
               f"{spatial} numbers from {-most} to {most - 1}")  # fmt: skip
        for i, at in enumerate(corner):
            w[14] |= (at & (1 << bits) - 1) << low + bits * i
    w[2] |= IM2COL
    w[13] |= (channels - 1) << 24
    w[15] = pixels - 1
    return _checked(w)


def _accept(function):
    def accept(ok, name, value, accepted):
        if not ok:
            raise TensorMapError(f"{function}: {name} is {value}; accepted: {accepted}")

    return accept


def _checked(words):
    """The bytes of a map's words; raises for errors in alignment, the inner box and its swizzle, NaN."""
    data = struct.pack("<32I", *words)
    decode_tensor_map(data)
    return data


def _common_words(
    accept, dtype, address, sizes, strides, element_strides, swizzle, l2_promotion, nan_fill
):
    """The words of a map, without its box."""
    rank = len(sizes)
    accept(dtype in _DTYPES, "dtype", repr(dtype), ", ".join(_DTYPES))
    accept(len(strides) == rank - 1, "the number of strides", len(strides), f"{rank - 1}")
    steps = (1,) * rank if element_strides is None else tuple(element_strides)
    accept(
        len(steps) == rank and all(1 <= s <= 8 for s in steps),
        "element_strides",
        steps,
        "1 to 8 each",
    )
    accept(swizzle in _SWIZZLES, "swizzle", swizzle, ", ".join(map(str, _SWIZZLES)))
    accept(
        l2_promotion in _PROMOTIONS, "l2_promotion", l2_promotion, ", ".join(map(str, _PROMOTIONS))
    )
    accept(all(1 <= n <= 1 << 32 for n in sizes), "sizes", tuple(sizes), "1 to 2^32 each")
    accept(all(s % 16 == 0 and 0 < s < 1 << 40 for s in strides), "strides", tuple(strides),
           "multiples of 16 below 2^40")  # fmt: skip
    code, itemsize, tf32 = _DTYPES[dtype]
    memory = memory_of(address, "address")
    start = int(address) if memory is None else memory.start
    span = itemsize * sizes[0]
    for size, stride in zip(sizes[1:], strides, strict=True):
        span = max(span, size * stride)
    w = [0] * 32
    w[0], w[1] = start & 0xFFFFFFFF, start >> 32
    w[2] = rank - 1 << 4 | code << 7 | _SWIZZLES[swizzle] << 13 | int(nan_fill) << 15 | tf32 << 16
    w[2] |= _PROMOTIONS[l2_promotion] << 17 | int(span >= WIDE_REACH) << 21
    for i, stride in enumerate(strides):
        w[3 + i] = stride >> 4 & 0xFFFFFFFF
        w[7] |= stride >> 36 << 4 * i
    for i, size in enumerate(sizes):
        w[8 + i] = size - 1
    for i, step in enumerate(steps):
        w[13] |= (step - 1) << 3 * i
    return w
