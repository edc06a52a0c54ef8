"""The host side that kernels meet: the runtime library, the driver API, DLPack."""
