"""SASS instruction -> the pipe it occupies, for how long, and when its scoreboards are free.

    pipe       instructions                              a warp instruction keeps it busy
    fma        FFMA FADD FMUL, FFMA2 (two results)       1 or 2 cycles at 128 FMA/cycle/SM
    heavy      IMAD and half-rate FMA forms              2
    alu        FMNMX FSEL LOP3 ISETP IADD3 PRMT MOV      2 at 64/cycle/SM
    convert    F2FP F2F I2F F2I                          2
    mufu       MUFU                                      8 at 16/cycle/SM
    uniform    U*                                        2
    tmem       LDTM STTM                                 by columns
    shared     LDS STS STSM, of the whole SM             by bytes
    none       branches, barriers, asynchronous engines  issue slot only

Fixed-latency results need no scoreboard: ptxas put their latency into the stall counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cute_fa4.emulator.model.constants import LANES, SUB_PARTITIONS, Constant
from cute_fa4.emulator.model.program import Instruction

_FMA = {
    "FFMA",
    "FADD",
    "FMUL",
    "FFMA32I",
    "FADD32I",
    "FMUL32I",
    "HFMA2",
    "HADD2",
    "HMUL2",
    "FSWZADD",
}
_FMA2 = {"FFMA2", "FADD2", "FMUL2"}
_HEAVY = {"IMAD", "DFMA", "IDP"}
_ALU = {
    "FMNMX", "FMNMX3", "FSEL", "FSETP", "FSET", "FCHK", "LOP3", "ISETP", "IADD3", "IADD", "SEL", "SHF", "LEA", "MOV",
    "PRMT", "PLOP3", "R2P", "P2R", "VIADD", "VIADDMNMX", "VIMNMX", "VIMNMX3", "VHMNMX", "CS2R", "SGXT", "BMSK", "IABS",
    "LOP", "CSEL", "IMNMX", "HMNMX2", "VOTE", "MOV32I",
}  # fmt: skip
_CONVERT = {"F2FP", "F2F", "F2I", "I2F", "I2FP", "FRND", "F2IP", "I2IP"}
_SHARED = {"LDS", "STS", "STAS", "LDSM", "STSM", "ATOMS", "SHFL"}
_GLOBAL = {"LDG", "LD", "ATOMG", "ATOM"}
_STORES = {"STG", "ST", "STL", "RED", "REDG"}
_CONSTANT = {"LDC", "LDCU"}
_SPECIAL = {
    "S2R",
    "S2UR",
    "CS2UR",
    "B2R",
    "REDUX",
    "CREDUX",
    "MATCH",
    "VOTEU",
    "UFLO",
    "FLO",
    "POPC",
    "UPOPC",
    "BREV",
}
_NONE = {
    "BRA", "BRX", "BRXU", "EXIT", "RET", "CALL", "BSSY", "BSYNC", "BREAK", "NOP", "BAR", "SYNCS",
    "WARPSYNC", "NANOSLEEP", "DEPBAR", "UTCBAR", "UTMALDG", "UTMASTG", "UTMAREDG", "UBLKRED",
    "UTMACMDFLUSH", "UTMACCTL", "UTMAPF", "UBLKCP", "UBLKPF", "ELECT", "YIELD", "USETMAXREG", "UCGABAR_ARV",
    "UCGABAR_WAIT", "ERRBAR", "CCTL", "BPT", "KILL", "PREEXIT", "ACQBULK", "UVIRTCOUNT", "WARPGROUP",
    "WARPGROUPSET", "ENDCOLLECTIVE", "CGAERRBAR", "FENCE", "MEMBAR", "LEPC", "UTCATOMSWS", "UTCCP",
    "ACQSHMINIT", "PMTRIG", "HGMMA", "QGMMA", "UGETNEXTWORKID",
}  # fmt: skip
_COLUMNS = re.compile(r"\.x(\d+)")
_BYTES = re.compile(r"\.(U8|S8|U16|S16|64|128)\b")
_MMA = re.compile(r"UTC[A-Z]+MMA$")


@dataclass(frozen=True)
class Cost:
    """pipe: name, None for the issue slot alone. busy, latency, read in cycles.

    latency: issue until the write scoreboard is free; read: until the read scoreboard is.
    known: False where the opcode is in no table and was taken for an ALU instruction.
    """

    pipe: str | None
    busy: float
    latency: float
    read: float
    known: bool = True


class Pipes:
    """The costs of instructions on a chip."""

    def __init__(self, constants: dict[str, Constant]):
        self._value = {name: constant.value for name, constant in constants.items()}
        self.unknown: set[str] = set()

    def _busy(self, rate: str, results: int = 1) -> float:
        sustained = self._value[rate] * self._value["pipe_efficiency"]
        return LANES * results / (sustained / SUB_PARTITIONS)

    def slowdown(self, pipe: str) -> float:
        """Factor on a pipe's time while a wgmma is under way: its accumulators are in registers."""
        return self._value.get(f"wgmma_slows_{'alu' if pipe == 'convert' else pipe}", 1.0)

    def cost(self, ins: Instruction) -> Cost:
        """The cost of an instruction, by its opcode alone."""
        name, value = ins.name, self._value
        read = value["lat_read"]
        if name in _FMA:
            return Cost("fma", self._busy("rate_fma"), read, read)
        if name in _FMA2:
            return Cost("fma", self._busy("rate_fma", 2), read, read)
        if name in _HEAVY:
            return Cost("fma", self._busy("rate_fma", 2), read, read)
        if name in _ALU:
            return Cost("alu", self._busy("rate_alu"), read, read)
        if name in _CONVERT:
            return Cost("convert", self._busy("rate_convert"), 2 * read, read)
        if name == "MUFU":
            return Cost("mufu", self._busy("rate_mufu"), value["lat_mufu"], read)
        if name in ("LDTM", "STTM"):
            return self._tensor_memory(ins)
        if name in _SHARED:
            nbytes = LANES * _bytes_a_lane(ins)
            return Cost("shared", nbytes / value["rate_shared"], value["lat_shared"], read)
        if name in _GLOBAL:
            return Cost(None, 0, value["lat_global"], read)
        if name == "LDL":
            return Cost(None, 0, value["lat_local"], read)
        if name in _STORES:
            return Cost(None, 0, read, 2 * read)
        if name in _CONSTANT:
            return Cost(None, 0, value["lat_constant"], read)
        if name in _SPECIAL:
            return Cost("alu", self._busy("rate_alu"), value["lat_special"], read)
        if name == "MEMBAR" and ".GPU" in ins.opcode:
            return Cost(None, 0, value["lat_membar_gpu"], value["lat_membar_gpu"])
        if name in ("FENCE", "MEMBAR"):
            return Cost(None, 0, value["lat_fence"], value["lat_fence"])
        if name == "UTCATOMSWS":
            return Cost(None, 0, value["lat_tmem_alloc"], read)
        if name in _NONE or _MMA.match(name):
            return Cost(None, 0, read, read)
        if name == "R2UR" or name.startswith("U"):
            return Cost("uniform", self._busy("rate_uniform"), value["lat_uniform"], read)
        self.unknown.add(name)
        return Cost("alu", self._busy("rate_alu"), read, read, known=False)

    def _tensor_memory(self, ins: Instruction) -> Cost:
        found = _COLUMNS.search(ins.opcode)
        nbytes = LANES * 4 * (int(found[1]) if found else 1) * _registers_of_column(ins.opcode)
        load = ins.name == "LDTM"
        rate = self._value["rate_tmem_load" if load else "rate_tmem_store"] / SUB_PARTITIONS
        latency = self._value["lat_tmem"]
        return Cost("tmem", nbytes / rate, latency + nbytes / rate, latency + nbytes / rate)


def _registers_of_column(opcode: str) -> int:
    """Registers for each of the .xN of LDTM and STTM: of rows in 16 lanes, those of 128 or 256 bits have 2 or 4."""
    found = re.search(r"16dp(128|256)bit", opcode)
    return int(found[1]) // 64 if found else 1


def _bytes_a_lane(ins: Instruction) -> int:
    if ins.name in ("LDSM", "STSM"):
        matrices = re.search(r"\.(\d)\b", ins.opcode.replace(".M88", ""))
        return 4 * int(matrices[1] if matrices else 1)
    found = _BYTES.search(ins.opcode)
    return {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}[found[1]] if found else 4


_RESULTS = {
    "LDTM": "tensor memory", "STTM": "tensor memory", "MUFU": "special functions", "LDL": "local memory",
    "UTCATOMSWS": "tensor memory allocation", "FENCE": "fence", "MEMBAR": "fence",
}  # fmt: skip


def result_name(name: str) -> str:
    """The result that an instruction's scoreboard waits for, in words. name: the opcode without suffixes."""
    if name in _RESULTS:
        return _RESULTS[name]
    if name in _SHARED:
        return "shared memory"
    if name in _GLOBAL or name in _STORES:
        return "global memory"
    if name in _CONSTANT:
        return "constants"
    return "uniform registers" if name == "R2UR" or name.startswith("U") else "registers"
