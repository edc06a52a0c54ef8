"""The family for pairs of CTAs over a latent cache of 8 bits under queries of 16 (MLA), dequantized in each CTA."""
