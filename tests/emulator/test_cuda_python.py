"""cuda-python on the emulator: devices, memory, streams, events, kernels of PTX; other calls are refused by name."""

import ctypes
import math

import numpy as np
import pytest

from cute_fa4.emulator.as_if_cuda import as_if_cuda
from cute_fa4.emulator.host import device, driver_api
from cute_fa4.emulator.ptx.errors import EmulatorError, IllegalAccess
from tests.emulator.test_ptx_files import SCALE

pytest.importorskip("cuda.bindings.driver", reason="cuda-python is not installed")

import cuda.bindings.driver as driver
import cuda.bindings.runtime as runtime


@pytest.fixture(autouse=True)
def _a_gpu():
    with as_if_cuda():
        yield


def answer(result):
    """The values that a call returns after its status, which must be success."""
    status, *values = result
    assert status in (driver.CUresult.CUDA_SUCCESS, runtime.cudaError_t.cudaSuccess)
    return values[0] if len(values) == 1 else tuple(values)


ATTRIBUTE = driver.CUdevice_attribute
# A call -> its answer. The numbers of a B200 are those that the rest of the emulator computes with.
ANSWERS = {
    "cuInit": (lambda: driver.cuInit(0), ()),
    "count": (lambda: driver.cuDeviceGetCount(), 1),
    "device": (lambda: driver.cuDeviceGet(0), 0),
    "name": (lambda: driver.cuDeviceGetName(9, driver.CUdevice(0)), device.NAME.encode()[:8]),
    "major": (
        lambda: driver.cuDeviceGetAttribute(
            ATTRIBUTE.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0
        ),
        10,
    ),
    "SMs": (
        lambda: runtime.cudaDeviceGetAttribute(
            runtime.cudaDeviceAttr.cudaDevAttrMultiProcessorCount, 0
        ),
        148,
    ),
    "context": (lambda: driver.cuCtxGetCurrent(), 1),
    "retain": (lambda: driver.cuDevicePrimaryCtxRetain(driver.CUdevice(0)), 1),
    "version": (lambda: driver.cuDriverGetVersion(), driver.CUDA_VERSION),
    "cuCtxSynchronize": (lambda: driver.cuCtxSynchronize(), ()),
    "cudaDeviceSynchronize": (lambda: runtime.cudaDeviceSynchronize(), ()),
    "cudaGetDevice": (lambda: runtime.cudaGetDevice(), 0),
    "name of an error": (
        lambda: driver.cuGetErrorName(driver.CUresult.CUDA_ERROR_NOT_FOUND),
        b"CUDA_ERROR_NOT_FOUND",
    ),
    "name of an error of the runtime": (
        lambda: runtime.cudaGetErrorName(runtime.cudaError_t.cudaErrorInvalidValue),
        b"cudaErrorInvalidValue",
    ),
}


@pytest.mark.parametrize("call, expected", ANSWERS.values(), ids=ANSWERS)
def test_the_device_is_that_of_the_emulator(call, expected):
    found = answer(call())
    assert (int(found) if isinstance(expected, int) else found) == expected


def test_properties_have_the_attributes_and_no_made_up_zeros():
    found = answer(runtime.cudaGetDeviceProperties(0))
    assert (found.major, found.multiProcessorCount) == (10, device.SM_COUNT)
    with pytest.raises(AttributeError, match=r"no property clockRate; it has .*warpSize"):
        found.clockRate  # noqa: B018


def test_streams_and_events_are_handles_and_nothing_is_timed():
    first, second = answer(driver.cuStreamCreate(0)), answer(runtime.cudaStreamCreate())
    assert int(first) != int(second) and int(first)
    events = [answer(driver.cuEventCreate(0)) for _ in range(2)]
    for event in events:
        answer(driver.cuEventRecord(event, first))
    answer(driver.cuEventSynchronize(events[1]))
    assert math.isnan(answer(driver.cuEventElapsedTime(*events)))
    answer(driver.cuStreamDestroy(first))


@pytest.mark.parametrize("late", ["", "Async"])
def test_memory_is_copied_and_filled(late):
    stream = [driver.CUstream(0)] if late else []
    x, y = np.arange(300, dtype=np.float32), np.zeros(300, np.float32)
    first, second = (answer(driver.cuMemAlloc(x.nbytes)) for _ in range(2))
    assert int(first) % device.ALIGNMENT == 0
    for name, target, source in (("HtoD", first, x), ("DtoD", second, first), ("DtoH", y, second)):
        answer(getattr(driver, f"cuMemcpy{name}{late}")(target, source, x.nbytes, *stream))
    assert np.array_equal(x, y)
    answer(getattr(driver, f"cuMemsetD32{late}")(second, 7, 10, *stream))
    answer(
        getattr(runtime, f"cudaMemcpy{late}")(
            y.ctypes.data, int(second), 44, runtime.cudaMemcpyKind.cudaMemcpyDefault, *stream
        )
    )
    assert y.view(np.uint32)[:10].tolist() == [7] * 10 and y[10] == x[10]
    for address in (first, second):
        answer(driver.cuMemFree(address))
    assert driver_api.global_memory.find(int(first), 1) is None


def test_a_copy_beyond_an_allocation_and_a_second_free_are_refused():
    address = answer(driver.cuMemAlloc(64))
    with pytest.raises(IllegalAccess, match="a copy writes 65 bytes .* beyond the end of 64 bytes"):
        driver.cuMemcpyHtoD(address, bytes(65), 65)
    driver.cuMemFree(address)
    with pytest.raises(EmulatorError, match="has freed before"):
        driver.cuMemFree(address)


def arguments(form, *values):
    """The arguments of SCALE as cuda-python takes them: values with types, or an array of addresses of values."""
    types = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_float, ctypes.c_uint32, ctypes.c_uint64)
    if form == "tuple":
        return values, types
    held = [
        kind(int(v) if kind is ctypes.c_void_p else v)
        for kind, v in zip(types, values, strict=True)
    ]
    addresses = np.array([ctypes.addressof(each) for each in held], np.uint64)
    arguments.held = held
    return addresses if form == "array" else addresses.ctypes.data


@pytest.mark.parametrize("form", ["tuple", "array", "address"])
@pytest.mark.parametrize("by", ["module", "library"])
def test_a_kernel_of_ptx_is_launched(form, by):
    x, y = np.arange(50, dtype=np.float32), np.empty(50, np.float32)
    x_there, y_there = (answer(driver.cuMemAlloc(x.nbytes)) for _ in range(2))
    answer(driver.cuMemcpyHtoD(x_there, x, x.nbytes))
    if by == "module":
        kernel = answer(
            driver.cuModuleGetFunction(answer(driver.cuModuleLoadData(SCALE.encode())), b"scale")
        )
    else:
        library = answer(driver.cuLibraryLoadData(SCALE.encode(), None, None, 0, None, None, 0))
        kernel = answer(
            driver.cuKernelGetFunction(answer(driver.cuLibraryGetKernel(library, b"scale")))
        )
    given = arguments(form, y_there, x_there, 3.0, 50, 7 << 32)
    if form == "address":
        addresses = arguments("array", y_there, x_there, 3.0, 50, 7 << 32)
        given = addresses.ctypes.data
    answer(driver.cuLaunchKernel(kernel, 2, 1, 1, 32, 1, 1, 0, driver.CUstream(0), given, 0))
    answer(driver.cuMemcpyDtoH(y, y_there, y.nbytes))
    assert np.array_equal(y, 3 * x + 7)


def test_what_a_launch_lacks_is_named():
    module = answer(driver.cuModuleLoadData(SCALE.encode()))
    with pytest.raises(EmulatorError, match="has no kernel other; it has scale"):
        driver.cuModuleGetFunction(module, b"other")
    kernel = answer(driver.cuModuleGetFunction(module, b"scale"))
    with pytest.raises(EmulatorError, match="scale takes 5 arguments, 1 were given"):
        driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, 0, ((1,), (ctypes.c_uint32,)), 0)
    with pytest.raises(EmulatorError, match="machine code .* load the PTX text"):
        driver.cuModuleLoadData(b"\x7fELF")


@pytest.mark.parametrize(
    "preferred, refused",
    [(4, None), (3, r"preferred clusters of \(3, 1, 1\) with clusters of \(2, 1, 1\)")],
)
def test_clusters_of_attributes_are_launched_or_refused(monkeypatch, preferred, refused):
    """A launch has the clusters that it may always get; a size that it cannot prefer is refused."""
    launched = {}
    monkeypatch.setattr(driver_api, "execute", lambda program, **given: launched.update(given))
    module = answer(driver.cuModuleLoadData(SCALE.encode()))
    kernel = answer(driver.cuModuleGetFunction(module, b"scale"))
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = 8, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = 32, 1, 1
    ids, attributes = driver.CUlaunchAttributeID, []
    for name, field, size in (
        ("CLUSTER_DIMENSION", "clusterDim", 2),
        ("PREFERRED_CLUSTER_DIMENSION", "preferredClusterDim", preferred),
    ):
        attribute = driver.CUlaunchAttribute()
        attribute.id = getattr(ids, f"CU_LAUNCH_ATTRIBUTE_{name}")
        dims = getattr(attribute.value, field)
        dims.x, dims.y, dims.z = size, 1, 1
        attributes.append(attribute)
    overlaps = driver.CUlaunchAttribute()
    overlaps.id = ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    overlaps.value.programmaticStreamSerializationAllowed = 1
    config.attrs = [*attributes, overlaps]
    config.numAttrs = len(config.attrs)
    given = arguments("tuple", 0, 0, 3.0, 50, 7 << 32)
    if refused:
        with pytest.raises(EmulatorError, match=refused):
            driver.cuLaunchKernelEx(config, kernel, given, 0)
    else:
        answer(driver.cuLaunchKernelEx(config, kernel, given, 0))
        assert launched["cluster"] == (2, 1, 1) and launched["dependent"]


def test_a_tensor_map_is_that_of_the_encoder():
    from cute_fa4.emulator.host import ptx_files

    kinds = driver.CUtensorMapDataType, driver.CUtensorMapInterleave, driver.CUtensorMapSwizzle
    made = answer(
        driver.cuTensorMapEncodeTiled(
            kinds[0].CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, 1 << 20,
            [driver.cuuint64_t(n) for n in (64, 8)], [driver.cuuint64_t(128)],
            [driver.cuuint32_t(n) for n in (64, 8)], [driver.cuuint32_t(1)] * 2,
            kinds[1].CU_TENSOR_MAP_INTERLEAVE_NONE, kinds[2].CU_TENSOR_MAP_SWIZZLE_128B,
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )  # fmt: skip
    expected = ptx_files.encode_tiled(
        "bf16", 1 << 20, (64, 8), (128,), (64, 8), swizzle=128, l2_promotion=256
    )
    assert ctypes.string_at(made.getPtr(), 128) == expected


@pytest.mark.parametrize("module, call", [(driver, "cuGraphCreate"), (runtime, "cudaGraphCreate")])
def test_every_other_call_is_refused_by_name(module, call):
    with pytest.raises(EmulatorError, match=rf"{module.__name__}\.{call}, which the emulator does"):
        getattr(module, call)(0)
    with pytest.raises(EmulatorError, match="device 1: the emulator has one device"):
        driver.cuDeviceGet(1)
    with pytest.raises(
        EmulatorError, match="device attribute 13, which the emulator does not know"
    ):
        driver.cuDeviceGetAttribute(ATTRIBUTE.CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 0)


def test_the_modules_have_their_former_names():
    from cuda import cuda, cudart

    assert cuda is driver and cudart is runtime
