"""The family for decode from a latent cache of 656 bytes a row with more than 32 rows: pairs of CTAs, each widens half."""
