"""The public functions on tensors that claim to be on a GPU, and everything that they ask of torch and of the driver.

    python -m tests.operators.cuda_calls DIRECTORY    of exported kernels; libcuda.so.1 records (examples/aot_cpp)
    {"dense": [[[operations of torch], [calls of the driver]], ...], ...}    JSON, an entry for each repetition

A call goes through checks, configuration and exported host code to the driver. No kernel runs,
and torch has no stream: the stream is the one that TVM-FFI was told.
"""

import json
import os
import sys
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from cute_fa4 import (
    compile_cache,
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    interface,
)
from cute_fa4.calls import repeat
from cute_fa4.system import devices

STREAM = 0xABCD0
REPETITIONS = 3


def rows(*shape):
    return torch.zeros(shape, dtype=torch.bfloat16)


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def dense(**options):
    q, k, v = rows(2, 40, 4, 64), rows(2, 40, 2, 64), rows(2, 40, 2, 64)
    return flash_attn_func, dict(q=q, k=k, v=v, causal=True, **options)


def ragged(offsets, **options):
    q, k, v, out = rows(900, 4, 64), rows(900, 2, 64), rows(900, 2, 64), rows(900, 4, 64)
    offsets = int32(*offsets)
    where = dict(cu_seqlens_q=offsets, cu_seqlens_k=offsets)
    return flash_attn_varlen_func, dict(q=q, k=k, v=v, out=out, causal=True, **where, **options)


def decode(used, pages, **options):
    """A new token for each of two sequences: an append and an attention."""
    caches = dict(k_cache=rows(6, 16, 2, 64), v_cache=rows(6, 16, 2, 64))
    new = dict(q=rows(2, 1, 4, 64), k=rows(2, 1, 2, 64), v=rows(2, 1, 2, 64))
    where = dict(cache_seqlens=int32(*used), page_table=int32(*pages))
    return flash_attn_with_kvcache, dict(**new, **caches, **where, causal=True, **options)


CALLS = {
    "dense": dense(return_lse=True),
    "dense into out": dense(return_lse=True, out=rows(2, 40, 4, 64)),
    # The longest sequence has 300 or 890 queries, 2 or 4 blocks of 256: a host that read it would launch other grids.
    "ragged": ragged((0, 300, 600), max_seqlen_q=900),
    "ragged, other lengths": ragged((0, 10, 900), max_seqlen_q=900),
    "ragged, no maximum": ragged((0, 300, 600)),
    "ragged, no maximum, other lengths": ragged((0, 10, 900)),
    "decode": decode((5, 20), ((3, 1), (0, 5)), out=rows(2, 1, 4, 64)),
    "decode, other lengths": decode((31, 0), ((5, 4), (1, 2)), out=rows(2, 1, 4, 64)),
}


def configurations() -> list:
    """Configurations that the calls need: determined on the CPU, without compiling."""
    needed = []

    def function_for(config, executor):
        needed.append(config)
        return lambda *arguments: None

    original, compile_cache.function_for = compile_cache.function_for, function_for
    repeat.clear()
    try:
        for function, arguments in CALLS.values():
            function(**arguments)
    finally:
        compile_cache.function_for = original
        repeat.clear()
    return list(dict.fromkeys(needed))


class OnCuda(torch.Tensor):
    """A tensor of device cuda:0 as far as Python can tell; the memory is that of a CPU tensor."""

    @staticmethod
    def __new__(cls, memory):
        self = torch.Tensor._make_wrapper_subclass(
            cls, memory.shape, strides=memory.stride(), dtype=memory.dtype, device="cuda:0"
        )
        self.memory = memory
        return self

    def data_ptr(self):
        return self.memory.data_ptr()

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        raise AssertionError(f"{operation} of a tensor on a GPU, which Recorder does not see")


class Recorder(TorchDispatchMode):
    """Writes down every operation of torch, and executes it on the real memory."""

    def __init__(self):
        super().__init__()
        self.operations = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.operations.append(str(operation))
        args, kwargs = tree_map_only(
            OnCuda, lambda tensor: tensor.memory, (args, dict(kwargs or {}))
        )
        if "device" in kwargs:
            kwargs["device"] = "cpu"
        return tree_map_only(torch.Tensor, OnCuda, operation(*args, **kwargs))


def pretend_there_is_a_gpu():
    torch.cuda._lazy_init = lambda: None
    torch.cuda.current_device = lambda: 0
    devices._compute_capability = lambda index: (10, 0)
    # The way of plain tensors, although a mode and a subclass look on.
    interface.is_traced = lambda q: False
    original = compile_cache.function_for

    def function_for(config, executor):
        from cute_fa4.emulator import as_cuda

        function = original(config, executor)

        def claims_cuda(value):
            if isinstance(value, (tuple, list)):
                return type(value)(map(claims_cuda, value))
            return as_cuda(value.memory) if isinstance(value, OnCuda) else value

        return lambda *arguments: function(*map(claims_cuda, arguments))

    compile_cache.function_for = function_for


def main(directory: str) -> None:
    import tvm_ffi

    from cute_fa4 import aot

    aot.load(directory)
    pretend_there_is_a_gpu()
    driver = Path(os.environ["RECORDING"])
    driver.touch()
    results = {}
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:0"), STREAM), torch.no_grad():
        for name, (function, arguments) in CALLS.items():
            arguments = tree_map_only(torch.Tensor, OnCuda, arguments)
            results[name] = []
            for _ in range(REPETITIONS):
                before = len(driver.read_text().splitlines())
                with Recorder() as recorder:
                    function(**arguments)
                results[name].append(
                    [recorder.operations, driver.read_text().splitlines()[before:]]
                )
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1])
