"""The family for decode from a latent cache with more than 64 rows a sequence: pairs of CTAs share the MMAs."""
