"""The family for many query rows of 16 bits over keys of 8: two query tiles, two warps widen K and V in their slots."""
