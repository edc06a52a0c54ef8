"""The family for decode from a latent cache with more than 64 rows per sequence: pairs of CTAs share the MMAs."""
