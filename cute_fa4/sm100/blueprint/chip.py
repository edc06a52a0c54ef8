"""Numbers of the chip that kernels are cut to. Source of each: NVIDIA's CUDA programming guide and PTX ISA."""

SMEM_CAPACITY_BYTES = 228 * 1024 - 1024  # an SM has 228 KiB, 1 KiB of it reserved for the system
SMEM_BASE_ALIGNMENT = 1024  # the 128-byte swizzle repeats every 8 rows of 128 bytes
TMEM_COLUMNS = 512
MBARRIER_BYTES = 8
F32_BYTES = 4
TMEM_ADDRESS_BYTES = 4
WARP_SIZE = 32
WARPS_PER_GROUP = 4  # a warpgroup: the four warps that see all 128 lanes of tensor memory
REGISTERS_PER_SM = 65536

ARCHES = ("sm_100a", "sm_103a")
SWIZZLE_BYTES = 128
P_LOG2 = 8.75  # the most that P of eight bits may be: e4m3 ends at 448 = 2^8.8


def align_up(value: int, granule: int) -> int:
    return -(-value // granule) * granule


def align_down(value: int, granule: int) -> int:
    return value // granule * granule
