"""A CTA that computes all parts of the keys of its rows, one after the other, and merges them before it stores them."""
