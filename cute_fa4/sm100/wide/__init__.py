"""The kernel for head dims up to 512, of V 256 a launch: one query tile, one O, K and V in units of 64 columns."""
