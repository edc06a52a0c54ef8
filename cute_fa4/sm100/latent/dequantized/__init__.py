"""The family for decode from a latent cache of 656 bytes a row (MLA): e4m3 with scales, widened in the CTA."""
