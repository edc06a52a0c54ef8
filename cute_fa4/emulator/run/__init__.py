"""A launch: program, schedules, warps in turn."""
