"""The family of two CTAs that share an MMA: two query tiles of 256 rows, half of K and V in the memory of each CTA."""
