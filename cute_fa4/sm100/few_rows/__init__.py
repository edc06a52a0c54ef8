"""The family for few query rows (decode): the operands of both products are swapped, keys and depth are the lanes."""
