"""A program of cuda.core for a Blackwell GPU: a device, buffers, a kernel of PTX, a launch on a stream.

python -m cute_fa4.emulator run examples/programs/cuda_core.py
"""

from pathlib import Path

import numpy as np
from cuda.core import Device, LaunchConfig, LegacyPinnedMemoryResource, ObjectCode, launch


def main():
    device = Device()
    device.set_current()
    stream = device.create_stream()
    ptx = Path(__file__).with_name("scale.ptx").read_bytes()
    kernel = ObjectCode.from_ptx(ptx).get_kernel("scale")

    n = 100
    on_host = LegacyPinnedMemoryResource().allocate(4 * n)
    x, y = (device.allocate(4 * n, stream=stream) for _ in range(2))
    numbers = np.from_dlpack(on_host).view(np.float32)
    numbers[:] = np.arange(n)
    on_host.copy_to(x, stream=stream)
    config = LaunchConfig(grid=2, block=64)
    launch(stream, config, kernel, y, x, np.float32(3), np.float32(7), np.uint32(n))
    y.copy_to(on_host, stream=stream)
    stream.sync()
    assert np.array_equal(numbers, 3 * np.arange(n) + 7)
    print(f"{device.name}, compute capability {device.compute_capability}: PASS")


if __name__ == "__main__":
    main()
