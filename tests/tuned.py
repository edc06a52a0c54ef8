"""Other values in the tuning table, for a test."""

from types import SimpleNamespace

from cute_fa4.calls.split_keys import split
from cute_fa4.sm100.blueprint import tuning


def changed(monkeypatch, **values) -> None:
    """Splits follow the package's table with these values, whatever the facts, for the rest of the test."""
    table = tuning.shipped().changed(**values)

    def choose(name, **facts):
        return table.choose(name, facts)

    monkeypatch.setattr(split, "tuning", SimpleNamespace(choose=choose))
