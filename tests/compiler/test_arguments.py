"""Parameters of the compiled functions, which exported headers and the launch share: as arguments.json has them.

python -m tests.compiler.test_arguments     writes the file again
"""

import json
from pathlib import Path

import pytest

from cute_fa4.aot.build import describe
from cute_fa4.compiler.compiler import kernel_and_arguments
from tests.ptx_identity import config_of

RECORDED = Path(__file__).with_name("arguments.json")
# Together they have every parameter that there is.
VARIANTS = (
    "causal lse",
    "packed causal",
    "lengths",
    "padded keys",
    "rows of a cache",
    "decode shared out",
    "packed, shared out",
    "decode in parts",
    "sink",
    "bias",
    "window both sides",
    "e4m3 scales of keys",
    "e4m3 scales of blocks",
    "rope pages",
    "rope 8 bits, scales",
    "rope beside 8 bits",
    "listed blocks",
    "skipped tiles, counted, d64",
    "append packed pages",
    "append B300, rows of a cache",
    "append to e4m3 with scales",
    "combine packed shared lse",
    "combine lengths, in order",
)


def parameters(name: str) -> list[dict]:
    kernel, arguments, _ = kernel_and_arguments(config_of(name))
    return describe(kernel, arguments)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_compiled_function_has_the_parameters_that_are_written_down(name):
    assert parameters(name) == json.loads(RECORDED.read_text())[name]


def test_every_parameter_of_the_attention_kernel_is_in_a_variant():
    seen = [p for name in VARIANTS[:18] for p in json.loads(RECORDED.read_text())[name]]
    given = {p["name"] for p in seen if p["kind"] != "none"}
    assert given == {p["name"] for p in seen}


if __name__ == "__main__":
    lines = (f"{json.dumps(name)}: {json.dumps(parameters(name))}" for name in VARIANTS)
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
