"""Execution of a launch: program, schedules, warp scheduler."""
