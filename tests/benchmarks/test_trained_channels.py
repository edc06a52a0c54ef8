"""Channels of a trained model: RoPE and statistics by their definitions, and rows that are drawn from the file."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import trained_channels as trained

LAYERS = json.loads(trained.FILE.read_text())["layers"]


def test_rope_keeps_lengths_and_scores_depend_on_the_distance_alone():
    """Rows 3 and 10 are as far apart as 203 and 210; float32 angles up to 210 have errors of 2^-17."""
    q, k = torch.randn(2, 1, 1, trained.DEPTH, generator=torch.Generator().manual_seed(0))
    at = lambda x, row: trained.rotated(x[None], torch.tensor([row]))[0]
    assert at(q, 210).norm().item() == pytest.approx(q.norm().item(), rel=1e-5)
    near, far = ((at(q, i + 7) * at(k, i)).sum().item() for i in (3, 203))
    assert near == pytest.approx(far, abs=1e-3)
    assert torch.equal(at(q, 0), q)


def test_statistics_are_those_of_each_head_and_column():
    """Of two sequences of three rows: 6 numbers a column."""
    x = torch.randn(2, 3, 2, trained.DEPTH, generator=torch.Generator().manual_seed(0))
    x[1, 2, 1, 5] = -9.0
    found = trained.statistics_of(x)
    column = x[:, :, 1, 5].flatten()
    assert found["mean"][1][5] == round(column.mean().item() * trained.UNIT)
    assert found["deviation"][1][5] == round(column.std().item() * trained.UNIT)
    assert found["largest"][1][0] == [5, 9 * trained.UNIT]
    assert len(found["largest"][0]) == trained.LARGEST


def test_a_model_learns_and_is_looked_into(monkeypatch):
    """Three steps of one short sequence: the loss falls, and every layer has statistics of its q, k and v."""
    for name, value in dict(LENGTH=8, BATCH=2, STEPS=3, WARM_UP=1).items():
        monkeypatch.setattr(trained, name, value)
    tokens = torch.tensor(list(b"as the crow flies, " * 4))
    said: list = []
    model = trained.trained(tokens, said.append)
    rows = tokens[:9][None]
    assert model.loss(rows) < torch.tensor(float(trained.BYTES)).log()
    found = trained.channels(model, rows[:, :-1])
    assert len(found) == trained.LAYERS == len(LAYERS) and len(said) == 1


@pytest.mark.parametrize("layer", range(trained.LAYERS))
def test_rows_are_as_large_as_those_of_the_model(layer):
    """The largest columns of each head, without RoPE: of 8,192 rows of the model, and of as many normal ones."""
    of_layer = LAYERS[layer]
    for name, heads in (("q", trained.HEADS), ("k", 1), ("v", 1)):
        mean, deviation = (torch.tensor(of_layer[name][x]) for x in ("mean", "deviation"))
        assert mean.shape == deviation.shape == (heads, trained.DEPTH)
        for head, largest in enumerate(of_layer[name]["largest"]):
            for column, magnitude in largest:
                of_rows = mean[head, column].abs() + 3.7 * deviation[head, column]
                assert 0.4 < magnitude / of_rows < 2, (name, head, column)
    q, k, v = trained.drawn(layer, 4)
    assert q.shape == (1, 1, trained.HEADS, trained.DEPTH)
    assert k.shape == v.shape == (1, 4, 1, trained.DEPTH)
    again = trained.drawn(layer, 4)
    assert all(torch.equal(a, b) for a, b in zip((q, k, v), again, strict=True))


def test_a_column_of_k_stands_out_in_the_second_layer():
    """docs/serving/four_bits.md: four times the average size, with a mean of 2.5 deviations."""
    mean, deviation = (torch.tensor(LAYERS[1]["k"][x][0]).float() for x in ("mean", "deviation"))
    sizes = (mean**2 + deviation**2).sqrt()
    column = sizes.argmax()
    assert sizes[column] / sizes.mean() == pytest.approx(4, abs=0.1)
    assert mean[column].abs() / deviation[column] == pytest.approx(2.5, abs=0.1)
