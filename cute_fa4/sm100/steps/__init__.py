"""What a role does with one tile, without an order of its own: loads, products, scores, row sums, store."""
