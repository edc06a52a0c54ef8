"""The kernel for head dims up to 256: one query tile, one O, K and V in units of 64 columns."""
