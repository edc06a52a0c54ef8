"""The emulator's GPU, as programs see it that ask for a device: attributes, properties, memory.

Attributes have the numbers of cudaDeviceAttr, which are those of CUdevice_attribute. Values are those of a B200, except
for the size of the memory: that of this machine, which holds the tensors.
"""

import os

import numpy as np

from cute_fa4.emulator.machine.memory import MAX_SHARED_BYTES, Allocation
from cute_fa4.emulator.ptx.errors import EmulatorError

NAME = "cute_fa4 emulator of sm_100a"
ALIGNMENT = 256  # of CUDA allocations

ATTRIBUTES = {
    1: 1024,  # threads per block
    2: 1024,  # block size in x
    3: 1024,  # in y
    4: 64,  # in z
    5: 0x7FFFFFFF,  # grid size in x
    6: 65535,  # in y
    7: 65535,  # in z
    8: 49152,  # shared memory per block without opt-in
    10: 32,  # warp size
    12: 65536,  # registers per block
    16: 148,  # multiprocessors
    31: 1,  # concurrent kernels
    38: 126 << 20,  # bytes of the L2 cache
    39: 2048,  # threads per multiprocessor
    41: 1,  # unified addressing
    75: 10,  # compute capability, major
    76: 0,  # minor
    81: 233472,  # shared memory per multiprocessor
    82: 65536,  # registers per multiprocessor
    83: 1,  # managed memory
    95: 1,  # cooperative launch
    97: MAX_SHARED_BYTES,  # shared memory per block, opt-in
    106: 32,  # blocks per multiprocessor
    111: 1024,  # shared memory that is reserved per block
    115: 1,  # memory pools
    120: 1,  # cluster launch
}

_MULTIPROCESSORS, _L2_BYTES = 16, 38
SM_COUNT = ATTRIBUTES[_MULTIPROCESSORS]
# Fields of cudaDeviceProp and of torch's device properties -> number of the attribute.
_FIELDS = {
    "maxThreadsPerBlock": 1, "sharedMemPerBlock": 8, "warpSize": 10, "regsPerBlock": 12, "multiProcessorCount": 16,
    "concurrentKernels": 31, "l2CacheSize": 38, "maxThreadsPerMultiProcessor": 39, "unifiedAddressing": 41, "major": 75,
    "minor": 76, "sharedMemPerMultiprocessor": 81, "regsPerMultiprocessor": 82, "managedMemory": 83,
    "cooperativeLaunch": 95, "sharedMemPerBlockOptin": 97, "maxBlocksPerMultiProcessor": 106,
    "reservedSharedMemPerBlock": 111,
    # torch's names
    "max_threads_per_block": 1, "shared_memory_per_block": 8, "warp_size": 10, "regs_per_multiprocessor": 82,
    "multi_processor_count": 16, "L2_cache_size": 38, "max_threads_per_multi_processor": 39,
    "shared_memory_per_multiprocessor": 81, "shared_memory_per_block_optin": 97,
}  # fmt: skip


class Properties:
    """cudaDeviceProp, and torch's device properties: an unknown field raises AttributeError, instead of a zero."""

    def __init__(self, name=NAME):
        self.name = name
        self.totalGlobalMem = self.total_memory = total_memory()
        for field, number in _FIELDS.items():
            setattr(self, field, ATTRIBUTES[number])

    def __getattr__(self, name):
        raise AttributeError(
            f"the emulator's GPU has no property {name}; it has {', '.join(sorted(vars(self)))}"
        )


class HardwareInfo:
    """Replaces cutlass.utils.HardwareInfo, which asks a driver and compiles a kernel for it."""

    def __init__(self, *_, **__):
        pass

    def get_device_multiprocessor_count(self):
        return SM_COUNT

    def get_max_active_clusters(self, cluster_size, *_, **__):
        return SM_COUNT // cluster_size

    def get_l2_cache_size_in_bytes(self):
        return ATTRIBUTES[_L2_BYTES]


def attribute(number):
    """The value of an attribute. Raises EmulatorError for one that is not in the table."""
    if number not in ATTRIBUTES:
        raise EmulatorError(
            f"the program asks for device attribute {number}, which the emulator does not know; "
            f"known are {sorted(ATTRIBUTES)}"
        )
    return ATTRIBUTES[number]


def total_memory():
    """Bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def free_memory():
    """Bytes of it that no process uses."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def allocated(nbytes, name):
    """(Allocation, array of bytes): memory at a multiple of 256 bytes, as CUDA's; the caller registers it."""
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return Allocation(memory.ctypes.data + start, nbytes, name), memory[start : start + nbytes]
