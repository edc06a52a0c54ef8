"""The compiler in a process that compiles hundreds of kernels: what it need not do twice, and need not keep.

A place in the sources is looked up once, and not again for every operation that is traced there.
Tracing a kernel builds some 27,000 operations. For each the DSL walks up the stack, matching the name of every frame's
module with a list of prefixes, and decodes the position table of the frame's code from its start: a tenth of a compile,
with the same answer wherever the same instruction builds an operation. Both answers are remembered here, and the
location made of them for as long as the same kernel is traced: it belongs to a context. So are the answers of the DSL
about MLIR types, which it asks of every value: which of its 32 numeric types one is, and of what elements.

What was traced goes when a compile is over. The DSL caches values by the context they were traced in (lru_cache_ir); an
entry of any of its forty caches keeps the whole context, 3.4 MB, until 128 other entries have replaced it.
"""

import functools

from tests.suite.imports import after_import

_caches = []  # of values by the context that they were traced in: their cache_clear


def remember_places():
    """From the import of the DSL on."""
    after_import("cutlass._mlir_helpers.op", _remember)
    after_import("cutlass._mlir_helpers.arith", _remember_elements)
    after_import("cutlass.base_dsl.typing", _remember_numeric_types)


def forget_contexts():
    """Likewise, at the end of every compile."""
    after_import("cutlass._mlir_helpers.lru_cache_ir", _note_caches)
    after_import("cutlass.base_dsl.compiler", _clear_after_compiles)


def _note_caches(module):
    make_decorator = module.lru_cache_ir

    @functools.wraps(make_decorator)
    def noting(*args, **kwargs):
        decorator = make_decorator(*args, **kwargs)

        def decorate(function):
            cached = decorator(function)
            _caches.append(cached.cache_clear)
            return cached

        return decorate

    module.lru_cache_ir = noting


def _clear_after_compiles(module):
    compile_it = module.CompileCallable.__call__

    @functools.wraps(compile_it)
    def compiling(*args, **kwargs):
        try:
            return compile_it(*args, **kwargs)
        finally:
            for clear in _caches:
                clear()

    module.CompileCallable.__call__ = compiling


def _remember(module):
    if hasattr(module, "_is_framework_stack_frame"):
        module._is_framework_stack_frame = once_for_a_code(module._is_framework_stack_frame)
    if hasattr(module, "_fast_frameinfo"):
        module._fast_frameinfo = once_for_a_place(module._fast_frameinfo)
        if hasattr(module, "_get_location_from_frame_info"):
            current = lambda: module.ir.Context.current
            make = once_for_a_context(module._get_location_from_frame_info, current)
            module._get_location_from_frame_info = make
            _caches.append(make.cache_clear)


def _remember_elements(module):
    for name in ("is_scalar", "element_type"):
        if hasattr(module, name):
            setattr(module, name, _once_for_a_type(getattr(module, name)))


def _remember_numeric_types(module):
    if hasattr(module.Numeric, "from_mlir_type"):
        module.Numeric.from_mlir_type = staticmethod(
            _once_for_a_type(module.Numeric.from_mlir_type)
        )


def _once_for_a_type(look_up):
    """look_up(type), called once for each MLIR type of a compile."""
    remembered = functools.cache(look_up)
    _caches.append(remembered.cache_clear)
    return remembered


def once_for_a_code(look_up):
    """look_up(frame), called once for each code object."""
    known = {}  # id of the code -> (the code, which must live as long as its id, the answer)

    @functools.wraps(look_up)
    def remembered(frame):
        code = frame.f_code
        found = known.get(id(code))
        if found is None:
            found = known[id(code)] = code, look_up(frame)
        return found[1]

    return remembered


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


def once_for_a_context(make, current):
    """make(answer), called once for each answer of once_for_a_place in the context current(); cache_clear() forgets."""
    known = {}  # id of the answer, which once_for_a_place keeps -> what was made of it
    of = [None]  # the context that these belong to

    @functools.wraps(make)
    def remembered(answer):
        context = current()
        if context is not of[0]:
            known.clear()
            of[0] = context
        made = known.get(id(answer))
        if made is None:
            made = known[id(answer)] = make(answer)
        return made

    def cache_clear():
        known.clear()
        of[0] = None

    remembered.cache_clear = cache_clear
    return remembered
