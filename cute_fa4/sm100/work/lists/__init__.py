"""The kernels that turn lists of blocks into lists of tiles, for the forward and the backward pass; no tensor core."""
