"""The steps of a role on one tile, independent of order: loads, MMAs, scores, row sums, store."""
