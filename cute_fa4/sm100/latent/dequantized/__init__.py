"""The family for decode from a latent cache of 8 bits under queries of 16 (MLA), dequantized in the CTA."""
