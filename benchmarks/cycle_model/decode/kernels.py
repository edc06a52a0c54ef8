"""Kernel -> cycles of its CTAs at several latencies of memory; machine code and traces come from the cache.

Cache keys: for our kernels their source files, then their machine code; for flash-attn-4 the package's version; for
both the recorder, and for cycles the model and its constants.
"""

from __future__ import annotations

import importlib.metadata
import json
import pickle
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from functools import wraps
from pathlib import Path

from benchmarks.cycle_model import cache, followed
from benchmarks.cycle_model.decode import our_decode
from benchmarks.cycle_model.decode.launch import Streaming
from benchmarks.cycle_model.decode.memory import Memory
from benchmarks.cycle_model.decode.variants import FURTHER_BLOCKS, TheirKernel, works
from benchmarks.cycle_model.grid import Curve
from benchmarks.cycle_model.kernels import ROOT, disassemble
from benchmarks.cycle_model.records import digest_of, normalised
from cute_fa4.compiler import toolkit
from cute_fa4.compiler.sources import kernel_sources
from cute_fa4.dtypes import bytes_of
from cute_fa4.emulator.model import align, control_codes, program, trace
from cute_fa4.emulator.model.constants import Constant
from cute_fa4.emulator.model.machine import Machine

HERE, FOLDER = Path(__file__).parent, Path(trace.__file__).parent
MODEL = [
    *(
        FOLDER / name
        for name in ("align.py", "uncounted.py", "machine.py", "engines.py", "pipes.py")
    ),
    Path(program.__file__),
]
# Latencies of the simulations, as multiples of the latency of idle memory.
LATENCIES = (1.0, 1.3, 1.7, 2.5, 4.0, 8.0)
MERGED_PARTS = (2, 4, 8, 16, 32)


def _remembered(function):
    """Caches results per kernel and constants in this process."""
    known: dict = {}

    def asked(*args):
        *kernel, constants = args
        key = (*kernel, tuple((name, c.value) for name, c in constants.items()))
        if key not in known:
            known[key] = function(*args)
        return known[key]

    return wraps(function)(asked)


@dataclass(frozen=True)
class Cycles:
    """What was simulated of a kernel: cycles of each work, at each of LATENCIES; of a merge, of each number of parts.

    code, ptxas  the digest of its PTX, and what made its machine code
    """

    of: dict
    code: str
    ptxas: str | None


@_remembered
def attention_cycles(config, seqlen_q: int, constants: dict[str, Constant]) -> Cycles:
    """An attention kernel of ours, for this many queries per sequence."""
    goes_on = bool(config.schedule.claims) or config.share_keys

    of_config = works(goes_on, config.in_runs, config.barriers.kv_slots)
    name = f"decode {config.name} q{seqlen_q}"
    found = _ours(name, config, lambda: our_decode.trace_attention(config, seqlen_q, of_config))
    return _by_latency(name, found, constants)


@_remembered
def their_cycles(kernel: TheirKernel, constants: dict[str, Constant]) -> Cycles:
    """A kernel of flash-attn-4."""
    version, sources = importlib.metadata.version("flash-attn-4"), _recorder("their_decode.py")
    key = cache.key(version, _compiler(), *sources)
    found = cache.stored(str(kernel), key, lambda: _their_code(kernel))
    return _by_latency(str(kernel), found, constants)


@_remembered
def merging_cycles(config, constants: dict[str, Constant]) -> Cycles:
    """A CTA of the merging kernel."""
    name = f"decode {config.name}"
    found = _ours(name, config, lambda: our_decode.trace_merge(config, MERGED_PARTS))
    here = constants | {"lat_global": constants["lat_l2"]}
    return _cycles(found, _simulated(name, found, here))


def attention(config, seqlen_q: int, constants: dict[str, Constant]) -> Streaming:
    """The curves of an attention kernel of ours, modelled now."""
    found = attention_cycles(config, seqlen_q, constants)
    return streaming(found.of, tile_bytes(config, seqlen_q), constants)


def their_attention(kernel: TheirKernel, constants: dict[str, Constant]) -> Streaming:
    """The same of a kernel of flash-attn-4."""
    found = their_cycles(kernel, constants)
    return streaming(found.of, their_tile_bytes(kernel), constants)


def merge_cycles(config, constants: dict[str, Constant]) -> Curve:
    """Cycles of a CTA of the merging kernel, by number of parts."""
    return _curve(merging_cycles(config, constants).of)


def _ours(name: str, config, record) -> tuple:
    """(PTX, machine code, traces, its listing); record() -> (PTX, traces), in a process that records."""
    recorder = _recorder("our_decode.py")

    def compiled():
        code = our_decode.cubin(config)

        def recorded():
            with trace.installed():
                ptx, traces = record()
            return ptx, code, traces, disassemble(code)

        return cache.stored(f"{name} code", cache.key(code, *recorder), recorded)

    files = kernel_sources(ROOT / "cute_fa4")
    return cache.stored(name, cache.key(_compiler(), *recorder, *files), compiled)


def tile_bytes(config, seqlen_q: int) -> float:
    """Bytes of a key tile from memory. Rows of a latent cache that several CTAs read come from memory once."""
    if not config.latent:
        rows = bytes_of(config.stored_dtype, 128 * (config.stored_depth + config.stored_ov_depth))
        scales = 128 * (config.qk_depth + config.ov_depth) // 16 if config.cache_blocks else 0
        return rows + scales
    blocks = -(-seqlen_q // config.tiles.positions_per_cta)
    stored = bytes_of(config.stored_dtype, 128 * config.stored_depth)
    return stored / (blocks * config.group // config.heads_per_tile)


def their_tile_bytes(kernel: TheirKernel) -> float:
    """The same of flash-attn-4."""
    return 4.0 * 128 * kernel.head_dim


def _cycles(found: tuple, of: dict) -> Cycles:
    ptx, code, *_ = found
    return Cycles(of, digest_of(normalised(ptx)), toolkit.ptxas_of(code))


def _latencies(constants: dict[str, Constant]) -> tuple[float, ...]:
    idle = Memory.of(constants).latency
    return tuple(idle * factor for factor in LATENCIES)


def _by_latency(name, found, constants) -> Cycles:
    simulated = []
    for latency in _latencies(constants):
        here = constants | {"tma_latency": replace(constants["tma_latency"], value=latency)}
        simulated.append(_simulated(name, found, here))
    return _cycles(found, {work: [one[work] for one in simulated] for work in simulated[0]})


def streaming(of: dict, tile_bytes: float, constants, state: str = "") -> Streaming:
    """The curves of a kernel. of: Work -> cycles at each of LATENCIES."""
    first, further, within = [], [], []
    for number in range(len(LATENCIES)):
        cycles = {work: at[number] for work, at in of.items()}
        single = {w.tiles: n for w, n in cycles.items() if w.blocks == w.parts == 1}
        blocks = {w.tiles: n for w, n in cycles.items() if w.blocks > 1}
        parts = {w.tiles: n for w, n in cycles.items() if w.parts > 1}
        first.append(_curve(single))
        further.append(_further(single, blocks))
        within.append(_further(single, parts or blocks))
    curves = tuple(first), tuple(further), tuple(within)
    return Streaming(_latencies(constants), *curves, float(tile_bytes), state)


def _further(single: dict, several: dict) -> Curve:
    """Cycles added by a further block or part; between simulated points the saving is that of the nearest one."""
    added = {n: (c - single[n]) / (FURTHER_BLOCKS - 1) for n, c in several.items()}
    if not added:
        return _curve(single)
    saved = {n: single[n] - added[n] for n in added}
    return _curve(
        {n: c - saved[min(saved, key=lambda known: abs(known - n))] for n, c in single.items()}
    )


def _curve(points: dict) -> Curve:
    return Curve(tuple(sorted(points.items())))


def _simulated(name: str, found: tuple, constants: dict[str, Constant]) -> dict:
    """Work -> cycles of the traced CTA."""
    ptx, code, traces, listing = found
    identity = cache.key(code, pickle.dumps(traces), *MODEL)
    # Constants in microseconds belong to a launch: no cycle of a CTA depends on them.
    inside = {n: c.value for n, c in sorted(constants.items()) if c.unit != "us"}
    values = json.dumps(inside)

    def make():
        read = control_codes.read(code, listing)
        machine = Machine(constants)
        paths = _paths(name, identity, ptx, read, traces)
        return {
            work: machine.run(path, read.codes, traces[work]).cycles
            for work, path in zip(traces, paths, strict=True)
        }

    return cache.stored(f"{name} cycles", cache.key(identity, values), make)


_aligned: dict[str, list] = {}


def _paths(name: str, identity: str, ptx: str, read, traces: dict) -> list:
    if identity not in _aligned:
        events = list(traces.values())
        packed = cache.stored(
            f"{name} paths",
            identity,
            lambda: align.packed(followed.paths(name, read.function, ptx, events), events),
        )
        _aligned.clear()
        _aligned[identity] = align.unpacked(packed, read.function, events)
    return _aligned[identity]


def _their_code(kernel: TheirKernel) -> tuple:
    """flash-attn-4, in a separate process (cycle_model/flash_attn_4.py says why)."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "kernel.pickle"
        module = "benchmarks.cycle_model.decode.their_decode"
        command = [sys.executable, "-m", module, str(out), json.dumps(asdict(kernel))]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if result.returncode or not out.exists():
            raise RuntimeError(f"{' '.join(command)} failed:\n{result.stdout}\n{result.stderr}")
        ptx, code, traces = pickle.loads(out.read_bytes())
    return ptx, code, traces, disassemble(code)


def _recorder(maker: str) -> list[Path]:
    return [Path(trace.__file__), HERE / "variants.py", HERE / maker]


def _compiler() -> str:
    return f"{importlib.metadata.version('nvidia-cutlass-dsl')} {toolkit.flavour()}"
