"""CuTe as an oracle: run a function inside a CuTe trace on this machine, no GPU and no driver needed."""

import pytest


@pytest.fixture
def trace(tmp_path):
    """trace(function) -> its result, evaluated while CuTe traces: CuTe's static layouts are Python values.

    trace(function, launch=True) traces it as a kernel for sm_100a and returns (result, PTX).
    """
    # CuTe is imported here, so that collecting the tests of the pure-Python parts stays fast.
    import cutlass.cute as cute

    def run(function, launch=False):
        results = []

        @cute.kernel
        def kernel():
            results.append(function())

        @cute.jit
        def host():
            kernel().launch(grid=(1, 1, 1), block=(128, 1, 1))

        @cute.jit
        def evaluate():
            results.append(function())

        # --keep-ptx also writes a file, which without --dump-dir lands in the working directory.
        options = f"--gpu-arch sm_100a --keep-ptx --dump-dir={tmp_path}"
        compiled = cute.compile(host if launch else evaluate, options=options)
        return (results[0], compiled.__ptx__) if launch else results[0]

    return run
