"""A program of cuda-python for a Blackwell GPU: memory, a module of PTX, a launch.

python -m cute_fa4.emulator run examples/programs/cuda_python.py
"""

import ctypes
from pathlib import Path

import numpy as np
from cuda.bindings import driver


def check(result):
    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(driver.cuGetErrorName(status)[1].decode())
    return values[0] if len(values) == 1 else values


def main():
    check(driver.cuInit(0))
    device = check(driver.cuDeviceGet(0))
    check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(device))))
    ptx = Path(__file__).with_name("scale.ptx").read_bytes()
    kernel = check(driver.cuModuleGetFunction(check(driver.cuModuleLoadData(ptx)), b"scale"))
    stream = check(driver.cuStreamCreate(0))

    n = 100
    x, y = np.arange(n, dtype=np.float32), np.empty(n, np.float32)
    x_there, y_there = check(driver.cuMemAlloc(x.nbytes)), check(driver.cuMemAlloc(y.nbytes))
    check(driver.cuMemcpyHtoDAsync(x_there, x.ctypes.data, x.nbytes, stream))
    values = (y_there, x_there, 3.0, 7.0, n)
    types = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_float, ctypes.c_float, ctypes.c_uint32)
    check(driver.cuLaunchKernel(kernel, 2, 1, 1, 64, 1, 1, 0, stream, (values, types), 0))
    check(driver.cuMemcpyDtoHAsync(y.ctypes.data, y_there, y.nbytes, stream))
    check(driver.cuStreamSynchronize(stream))
    assert np.array_equal(y, 3 * x + 7)
    for address in (x_there, y_there):
        check(driver.cuMemFree(address))
    print("PASS")


if __name__ == "__main__":
    main()
