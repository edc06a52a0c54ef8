"""All subjects and all defects together."""

from functools import cache

from tests.emulator.mutations import (
    arithmetic_defects,
    arrival_defects,
    attention_defects,
    attention_kernel,
    crossed_defects,
    lagged_defects,
    memory_defects,
    one_tile_defects,
    queue_defects,
    single_tile_defects,
    small_defects,
    small_kernels,
    uneven_defects,
)

LEVEL = "ptx"
"""The level of checks that this package's kernels claim (docs/verification.md)."""


@cache
def subjects():
    """Subject by name."""
    return {**attention_kernel.subjects(LEVEL), **small_kernels.subjects(LEVEL)}


@cache
def mutants():
    """Every Mutant, in a fixed order."""
    return (
        *attention_defects.mutants(),
        *arrival_defects.mutants(),
        *queue_defects.mutants(),
        *lagged_defects.mutants(),
        *crossed_defects.mutants(),
        *memory_defects.mutants(),
        *arithmetic_defects.mutants(),
        *one_tile_defects.mutants(),
        *single_tile_defects.mutants(),
        *uneven_defects.mutants(),
        *small_defects.mutants(),
    )
