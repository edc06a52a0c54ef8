"""Split keys: the plan, the memory for parts, the merge."""
