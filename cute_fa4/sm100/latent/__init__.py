"""The family for decode from a latent cache (MLA): V is the first columns of K, so one copy serves both products."""
