"""Schemas of the operators are public: a graph that was exported names them, so they print what schemas.txt says."""

from pathlib import Path

from cute_fa4.operators import OPERATORS

SCHEMAS = Path(__file__).with_name("schemas.txt")


def test_every_operator_prints_the_schema_that_is_written_down():
    printed = [str(operator._schema) for operator in OPERATORS.values()]
    assert printed == SCHEMAS.read_text().splitlines()
