"""The family for more than 32 rows over a latent cache of 656 bytes a row: pairs of CTAs, each dequantizes half."""
