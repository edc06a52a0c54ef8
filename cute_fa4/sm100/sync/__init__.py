"""How warps wait for each other: the barrier table, rings of slots, events."""
