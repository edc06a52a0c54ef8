"""Calls of functions that the driver provides, such as vprintf: as one instruction with its parameters in local memory.

    .param .b64 param0;                                .local .b64 param0
    st.param.b64 [param0], %rd1;                       st.local.b64 [param0], %rd1
    call.uni (retval0), vprintf, (param0, param1);     call.vprintf retval0, param0, param1

A variable of a body in the space .param has separate bytes for every thread, like one in .local. A block declares its
parameters anew, with the names of the one before: a name keeps the largest size.
"""

import dataclasses
import re

from cute_fa4.emulator.ptx.syntax import Addr, Symbol

_CALL = re.compile(r"(?:\(\s*(\w+)\s*\)\s*,\s*)?([\w$]+)\s*(?:,\s*\(([^)]*)\)\s*(?:,.*)?)?$", re.S)


def rewritten(opcode, rest):
    """Opcode and operands of a statement: those of a call as above, "_" for a result that it does not have."""
    if opcode not in ("call", "call.uni"):
        return opcode, rest
    found = _CALL.match(rest)
    if found is None or found[2].startswith("%"):
        return opcode, "_"  # through a register: lookup names the statement
    return f"call.{found[2]}", ", ".join(filter(None, (found[1] or "_", (found[3] or "").strip())))


def as_local(variable, table, kernel):
    """A variable of a body: in .local if it is declared in .param."""
    if variable.space != "param" or kernel is None:
        return variable
    before = table.get(variable.name)
    nbytes = max(variable.nbytes, before.nbytes if before is not None else 0)
    return dataclasses.replace(variable, space="local", nbytes=nbytes)


def in_local_memory(opcode, operands):
    """The opcode of a load or store of such a variable."""
    if not opcode.startswith(("ld.param", "st.param")):
        return opcode
    bases = (operand.base if isinstance(operand, Addr) else operand for operand in operands)
    if any(isinstance(base, Symbol) and base.space == "local" for base in bases):
        return opcode.replace(".param", ".local", 1)
    return opcode
