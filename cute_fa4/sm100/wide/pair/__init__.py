"""The family of two CTAs that share an MMA for head dims up to 512: half of K and V in the memory of each."""
