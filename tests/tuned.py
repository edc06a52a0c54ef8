"""Other values in the tuning table, for a test."""

from types import SimpleNamespace

from cute_fa4.calls.split_keys import split
from cute_fa4.sm100.blueprint import tuning


def pairs_gain_two_percent(monkeypatch, folder) -> None:
    """For the rest of the test, calls and lists take pairs of CTAs where modelled cycles say that these save 2 %."""
    path = folder / "pairs.toml"
    path.write_text("[[pairs_least_gain]]\nvalue = 0.02\n")
    monkeypatch.setenv(tuning.VARIABLE, str(path))


def changed(monkeypatch, **values) -> None:
    """Splits follow the package's table with these values, whatever the facts, for the rest of the test."""
    table = tuning.shipped().changed(**values)

    def choose(name, **facts):
        return table.choose(name, facts)

    monkeypatch.setattr(split, "tuning", SimpleNamespace(choose=choose))
