"""What ptxas says of single instructions, and operands with which some target accepts each spelling of spellings.py.

ptxas reports every instruction that a target lacks with its line, so thousands of them take one call. The last line is
wrong on purpose: no machine code is generated. Only a syntax error ends a call early; its line is then left out.
"""

import re
import subprocess

from cute_fa4.emulator.model import ptxas

HEAD = """.version 9.2
.target {}
.address_size 64
.visible .entry k() {{
.reg .b32 %r<200>; .reg .b64 %rd<20>; .reg .pred %p; .reg .b128 %q<4>; .reg .b16 %h<9>;
"""
_LINE = re.compile(r"^ptxas \S+, line (\d+); (error|fatal)\s+: (.*)$", re.M)


def newest():
    """A ptxas that knows this version of PTX, or None."""
    for program in ptxas.candidates():
        done = subprocess.run([program, "--version"], capture_output=True, text=True)
        release = re.search(r"release (\d+)\.(\d+)", done.stdout)
        if release and tuple(map(int, release.groups())) >= (13, 2):
            return program
    return None


def refused(program, lines, target, folder):
    """Number of a line -> what ptxas says against it."""
    found, live = {}, list(range(len(lines)))
    path = folder / f"{target}.ptx"
    while True:
        body = "\n".join(lines[at] for at in live)
        path.write_text(f"{HEAD.format(target)}{body}\nadd.u32;\nret;\n}}\n")
        command = [program, f"-arch={target}", path, "-o", folder / "none.cubin"]
        said = subprocess.run(command, capture_output=True, text=True)
        here, broken = {}, None
        for number, kind, text in _LINE.findall(said.stderr + said.stdout):
            at = int(number) - HEAD.count("\n") - 1
            if at < len(live):
                here.setdefault(live[at], text)
                broken = live[at] if kind == "fatal" else broken
        if broken is None:
            return found | here
        found[broken] = here[broken]
        live.remove(broken)


def with_operands(program, opcodes, targets, folder):
    """Opcode -> an instruction that one of the targets accepts; opcodes that none accepts are left out."""
    found = {}
    for target in targets:
        left = [opcode for opcode in opcodes if opcode not in found]
        choices = {opcode: list(operands(opcode)) for opcode in left}
        for turn in range(max(map(len, choices.values()), default=0)):
            tried = [o for o in left if o not in found and turn < len(choices[o])]
            lines = [f"{opcode} {choices[opcode][turn]};" for opcode in tried]
            wrong = refused(program, lines, target, folder)
            found |= {o: lines[at] for at, o in enumerate(tried) if at not in wrong}
    return found


_REGISTERS = {"32x32b": 1, "16x64b": 1, "16x32bx2": 1, "16x128b": 2, "16x256b": 4}


def _vector(count, name="%r"):
    return "{" + ", ".join([f"{name}1"] * count) + "}"


def operands(opcode):
    """Operands that an opcode of the chapters of Blackwell may take, one of them right."""
    parts = opcode.split(".")
    if parts[0] == "tcgen05":
        return _of_tensor_memory(opcode, parts)
    if "bulk" in parts:
        return _of_bulk_copies(opcode)
    if parts[0] == "tensormap":
        values = (
            f"[{at}], {o}{v}"
            for at in ("%rd0", "%r0")
            for o in ("", "0, ")
            for v in ("%rd1", "%r1", "1")
        )
        return ["[%rd0], [%r0], 128", *values]  # fmt: skip
    if parts[0] == "fence":
        return ["", "[%rd0], 128"]
    own = "[%r0]" if ".shared" in opcode else "[%rd0]"
    if "mbarrier" in parts and parts[0] in ("mbarrier", "cp"):
        forms = (
            "@",
            "@, 1",
            "@, %r1",
            "%rd1, @",
            "_, @",
            "%rd1, @, %r1",
            "_, @, %r1",
            "%p, @, %rd1",
            "%p, @, %r1",
        )
        wanted = [form for form in forms if form.startswith("%p") == ("_wait" in opcode)]
        return [*(form.replace("@", own) for form in wanted), "%r0, %rd0"]  # fmt: skip
    if parts[0] in ("st", "red"):
        values = ("%r1", "%rd1", _vector(2), _vector(2, "%rd"), _vector(4))
        return [f"{own}, {value}, {own}" for value in values]
    if parts[0] == "cvt":
        return ["%r0, %r1, %r2, %r3", *(f"{to}, {_vector(4)}, %r2" for to in ("%r0", "%h0"))]
    plain = ("%r0, %r1, %r2", "%rd0, %rd1, %r2", "%r0, %r1", "%r0, %rd1", "%rd0, %rd1")
    answers = ("[%r0], [%r1]", "[%rd0], [%rd1]", "%p, %q0", "%r0, %q0", f"{_vector(4)}, %q0")
    return ["", *plain, *answers]


def _of_tensor_memory(opcode, parts):
    if parts[1] in ("ld", "st"):
        shape = next(part for part in parts if part in _REGISTERS)
        number = next(part for part in parts if re.fullmatch(r"x\d+", part))
        values = _vector(_REGISTERS[shape] * int(number[1:]))
        place = "[%r0], 16" if shape == "16x32bx2" else "[%r0]"
        reduced = ", %r9" if parts[2] == "red" else ""
        return [f"{values}{reduced}, {place}" if parts[1] == "ld" else f"{place}, {values}"]
    if parts[1] == "mma":
        metadata = ", [%r4]" if "sp" in parts else ""
        scales = ", [%r2], [%r3]" if "block_scale" in parts else ""
        return [f"[%r0], {a}, %rd1{metadata}, %r1{scales}, %p" for a in ("%rd0", "[%r5]")]
    places = ("[%r0]", "[%rd0]")
    return ["", "[%r0], 64", "%r0, 64", "[%r0], %rd0", *places, *(f"{at}, %h1" for at in places)]


def _of_bulk_copies(opcode):
    hint = ", %rd9" if "cache_hint" in opcode else ""
    mask = ", %h1" if "multicast" in opcode or "cp_mask" in opcode else ""
    rank = re.search(r"tensor\.(\d)d", opcode)
    if rank is None:
        if opcode.endswith(("commit_group", "wait_group", "wait_group.read")):
            return ["", "0"]
        forms = (
            "[%r0], [%rd0], %r1, [%r2]",
            "[%r0], [%r1], %r2, [%r3]",
            "[%rd0], [%r0], %r1",
            "[%rd0], %r0",
        )
        return [form + rest for form in forms for rest in (mask + hint, hint + mask)]  # fmt: skip
    count = 5 if "gather4" in opcode or "scatter4" in opcode else int(rank[1])
    box = f"[%rd0, {_vector(count)}]"
    offsets = ["", *(f", {_vector(n, '%h')}" for n in (1, 2, 3))]
    if "prefetch" in opcode:
        return [f"{box}{offset}{hint}" for offset in offsets]
    if ".global.shared" in opcode:
        return [f"{box}, [%r0]{hint}"]
    return [f"[%r0], {box}, [%r1]{offset}{mask}{hint}" for offset in offsets]
