"""The backward pass: kernels whose CTAs own queries (dQ) or keys (dK, dV), or one for all; equal bits in every run."""
