"""The compiler looks up a place in the sources once, and not again for every operation that is traced there.

Tracing a kernel builds some 27,000 operations. For each the DSL walks up the stack, matching the name of every frame's
module with a list of prefixes, and decodes the position table of the frame's code from its start: a tenth of a compile,
with the same answer wherever the same instruction builds an operation. Both answers are remembered here.
"""

import functools

from tests.suite.imports import after_import


def remember_places():
    """From the import of the DSL on."""
    after_import("cutlass._mlir_helpers.op", _remember)


def _remember(module):
    if hasattr(module, "_is_framework_module"):
        module._is_framework_module = functools.cache(module._is_framework_module)
    if hasattr(module, "_fast_frameinfo"):
        module._fast_frameinfo = once_for_a_place(module._fast_frameinfo)


def once_for_a_place(look_up):
    """look_up(frame), called once for each instruction of each code object."""
    known = {}  # (id of the code, instruction) -> (the code, which must live as long as its id, the answer)

    @functools.wraps(look_up)
    def remembered(frame):
        key = id(frame.f_code), frame.f_lasti
        found = known.get(key)
        if found is None:
            found = known[key] = frame.f_code, look_up(frame)
        return found[1]

    return remembered
