"""What describes a kernel without the compiler: problem, tiles, memory maps, barrier tables, masks, names."""
