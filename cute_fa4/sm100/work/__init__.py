"""Which rows meet which keys: sequences, query blocks and their order, key ranges, the queue of a CTA."""
