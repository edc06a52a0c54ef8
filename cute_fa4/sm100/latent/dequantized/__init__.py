"""The family for decode from a latent cache of 656 bytes a row (MLA): e4m3 with scales, dequantized in the CTA."""
