"""The host side of kernels: the runtime library, the driver API, DLPack."""
