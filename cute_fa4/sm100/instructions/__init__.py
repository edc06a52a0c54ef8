"""One function per PTX instruction of the kernels: tensor core, tensor memory, exponentials."""
