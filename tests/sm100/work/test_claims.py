"""Who claims: the table of docs/decisions/0007 is the rule, and a schedule or the environment overrules it."""

from pathlib import Path

import pytest

from cute_fa4.compiler import policy
from cute_fa4.sm100.blueprint import claims, tuning
from cute_fa4.sm100.choose.choose_config import choose_config
from cute_fa4.sm100.two_tiles.schedule import TwoTiles

PACKED = dict(q_layout="packed", kv_layout="packed")
PAGED = dict(kv_layout="paged", page_size=16, seqused_k=True)
DECISION = (
    Path(__file__).resolve().parents[3] / "docs/decisions/0007-who-claims-and-who-starts-early.md"
)


def config(**choices):
    return choose_config(**{"qkv_dtype": "bf16", "head_dim": 128, **choices})


@pytest.mark.parametrize(
    "choices, expected",
    [
        ({}, "dense full"),
        (dict(group=8), "dense full"),
        (dict(causal=True), "other"),
        (dict(seqused_k=True), "other"),
        (PACKED, "packed MHA"),
        ({**PACKED, "causal": True}, "packed MHA"),
        ({**PACKED, "group": 8}, "other"),
        ({**PAGED, "q_layout": "packed"}, "other"),
    ],
)
def test_the_classes_are_those_that_were_measured(choices, expected):
    assert claims.class_of(config(**choices)) == expected


@pytest.mark.parametrize("name", claims.CLASSES)
def test_a_class_decides_unless_the_schedule_does(name, monkeypatch):
    choices = {"dense full": {}, "packed MHA": PACKED, "other": dict(causal=True)}[name]
    for default in (True, False):
        rows = (tuning.Row({"calls": name}, default),)
        table = tuning.Tuning({"claims": rows}).before(tuning.shipped())
        monkeypatch.setattr(tuning, "active", lambda table=table: table)
        assert config(**choices).schedule.claims is default
        assert config(**choices, claims=not default).schedule.claims is not default
        assert TwoTiles(claims=not default).resolved(config(**choices)).claims is not default


def test_the_environment_overrules(monkeypatch):
    for word, expected in (("auto", None), ("on", True), ("off", False)):
        monkeypatch.setenv("CUTE_FA4_CLAIMS", word)
        assert policy.claims() is expected
    monkeypatch.delenv("CUTE_FA4_CLAIMS")
    assert policy.claims() is None


def test_the_decision_has_every_class_with_its_default():
    rows = [line for line in DECISION.read_text().splitlines() if line.startswith("| ")]
    last = {row.split(" | ")[0].strip("| "): row.rstrip("| ").split(" | ")[-1] for row in rows}
    names = {"other": "masks, grouped heads, pages, lengths"}
    for name in claims.CLASSES:
        assert last[names.get(name, name)] == ("on" if claims.class_claims(name) else "off")


@pytest.mark.parametrize("rows", [{}, {"rows": 8}])
def test_where_keys_are_shared_there_is_nothing_to_claim(rows):
    """Asked for or not: equal kernels have equal keys."""
    for asked in (None, True, False):
        config = choose_config(
            qkv_dtype="bf16", head_dim=64, seqused_k=True, claims=asked, split_keys=True, share_keys=True,
            write_lse=True, o_dtype="f32", **rows,
        )  # fmt: skip
        assert config.schedule.claims is False and not config.refusals()
