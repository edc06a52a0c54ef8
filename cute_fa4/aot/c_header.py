"""NAME.h of an exported kernel: its parameters as a C structure, and the function that launches it."""

from __future__ import annotations

_C = {"f32": "float", "i32": "int32_t"}


def header(name: str, parameters: list, arch: str) -> str:
    """The text of NAME.h; parameters as in the manifest (build.describe)."""
    used = [p for p in parameters if p["kind"] != "none"]
    members = "".join(f"    {_member(p)}\n" for p in used)
    values = "".join(f"    v[{i}] = {_value(p)};\n" for i, p in enumerate(parameters))
    tuples = [p for p in used if p["kind"] == "tuple"]
    locals_ = "".join(
        f"    cute_fa4_value {p['name']}_items[{len(p['items'])}];\n    cute_fa4_array {p['name']}_array;\n"
        for p in tuples
    )
    fill = "".join(
        f"    {p['name']}_items[{i}] = {_item(item, _element(p, i))};\n"
        for p in tuples
        for i, item in enumerate(p["items"])
    )
    return f"""/* {name}: an attention kernel for {arch}; link {name}_c.so.
 * Written by cute_fa4.aot.export. Device pointers, sizes and strides are bound at each call.
 */
#ifndef CUTE_FA4_{name.upper()}_H
#define CUTE_FA4_{name.upper()}_H

#include "cute_fa4_kernel.h"

#ifdef __cplusplus
extern "C" {{
#endif

int __tvm_ffi_{name}(void *self, const cute_fa4_value *arguments, int32_t count, cute_fa4_value *result);
void {name}_use_stream(void *stream);
/* Why the last call of {name} in this thread returned non-zero. */
const char *{name}_last_error(void);

typedef struct {{
{members}    void *stream; /* CUstream or cudaStream_t; NULL: the default stream */
}} {name}_arguments;

/* Launch without waiting. 0, or non-zero and {name}_last_error() says why. */
static inline int {name}(const {name}_arguments *a) {{
    cute_fa4_value v[{len(parameters)}], result = cute_fa4_none();
{locals_}{fill}{values}    {name}_use_stream(a->stream);
    return __tvm_ffi_{name}(NULL, v, {len(parameters)}, &result);
}}

#ifdef __cplusplus
}}
#endif
#endif
"""


def _member(p: dict) -> str:
    name, kind = p["name"], p["kind"]
    if kind == "tensor":
        return f"const cute_fa4_dltensor *{name}; /* {_tensor(p)} */"
    if kind == "tuple":
        first, count = p["items"][0], len(p["items"])
        if first["kind"] == "tensor":
            return f"const cute_fa4_dltensor *{name}[{count}];"
        return f"{_C[first['kind']]} {name}[{count}];"
    return f"{_C[kind]} {name};"


def _tensor(p: dict) -> str:
    sizes = ", ".join("*" if size is None else str(size) for size in p["shape"])
    text = f"{p['dtype']} ({sizes})"
    if p["stride_multiple"] > 1:
        text += f", strides multiples of {p['stride_multiple']}"
    return text + f", aligned to {p['alignment']} bytes"


def _value(p: dict) -> str:
    name, kind = p["name"], p["kind"]
    if kind == "none":
        return "cute_fa4_none()"
    if kind == "tuple":
        return f"cute_fa4_tuple(&{name}_array, {name}_items, {len(p['items'])})"
    return _item(p, f"a->{name}")


def _element(p: dict, i: int) -> str:
    return f"a->{p['name']}[{i}]"


def _item(p: dict, value: str) -> str:
    call = {"tensor": "cute_fa4_tensor_value", "f32": "cute_fa4_float", "i32": "cute_fa4_int"}
    return f"{call[p['kind']]}({value})"
