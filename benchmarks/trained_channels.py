"""Channels of q, k and v of a tiny trained language model: the data for tables of errors of caches. Needs no GPU.

    python benchmarks/trained_channels.py    write docs/data/trained_channels.json; about two minutes on a core

The model is like Llama: RMSNorm, RoPE, eight query heads on one key/value head of 128 columns, SwiGLU, no biases; two
layers of 128 columns, bytes as tokens. It learns the text of docs/decisions/ in float32 on one thread. The file has for
each layer, head and column of q, k and v the mean and the standard deviation over held-out text, before RoPE, and the
largest magnitudes with their columns. drawn() makes rows of any length from them: independent normal numbers with these
means and deviations, then RoPE. So rows have the channels of the model, and not its correlations between channels.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "docs" / "data" / "trained_channels.json"
TEXT = ROOT / "docs" / "decisions"

DEPTH, HEADS, WIDTH, HIDDEN, LAYERS, BYTES = 128, 8, 128, 384, 2, 256
LENGTH, BATCH, STEPS, WARM_UP, RATE = 128, 8, 400, 20, 3e-3
HELD_OUT = 64  # sequences at the end of the text
UNIT = 100  # numbers of the file are hundredths
LARGEST = 4  # columns of a head whose magnitudes the file has
BASE = 10_000.0


def rotated(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """x (..., rows, heads, DEPTH) after RoPE: column i turns with column i + DEPTH / 2. positions: (rows,)"""
    frequencies = BASE ** (-torch.arange(0, DEPTH, 2) / DEPTH)
    angles = (positions[:, None] * frequencies)[:, None, :]
    low, high = x.float().chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


class Layer(nn.Module):
    """Attention and SwiGLU. `seen` receives q, k and v before RoPE, if it is a list."""

    def __init__(self):
        super().__init__()
        linear = lambda rows, columns: nn.Linear(rows, columns, bias=False)
        self.norm, self.norm_2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.o = linear(WIDTH, HEADS * DEPTH), linear(HEADS * DEPTH, WIDTH)
        self.k, self.v = linear(WIDTH, DEPTH), linear(WIDTH, DEPTH)
        self.gate, self.up = linear(WIDTH, HIDDEN), linear(WIDTH, HIDDEN)
        self.down = linear(HIDDEN, WIDTH)
        self.seen: list | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.norm(x)
        q, k, v = (f(inner).unflatten(-1, (-1, DEPTH)) for f in (self.q, self.k, self.v))
        if self.seen is not None:
            self.seen.append((q, k, v))
        at = torch.arange(x.shape[1])
        heads = (rotated(q, at), rotated(k, at), v)
        out = F.scaled_dot_product_attention(
            *(t.transpose(1, 2) for t in heads), is_causal=True, enable_gqa=True
        )
        x = x + self.o(out.transpose(1, 2).flatten(-2))
        inner = self.norm_2(x)
        return x + self.down(F.silu(self.gate(inner)) * self.up(inner))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(BYTES, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, BYTES, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        """Nats a byte. tokens: (batch, LENGTH + 1)"""
        return F.cross_entropy(self(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def text() -> bytes:
    return b"".join(path.read_bytes() for path in sorted(TEXT.glob("*.md")))


def trained(tokens: torch.Tensor, say=print) -> Model:
    """The model after STEPS steps on sequences from random places."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Model()
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / WARM_UP) * (1 - 0.9 * step / STEPS)
        first = torch.randint(len(tokens) - LENGTH, (BATCH,), generator=generator)
        loss = model.loss(tokens[first[:, None] + torch.arange(LENGTH + 1)])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            say(f"step {step}: {loss.item():.3f} nats a byte")
    return model


def statistics_of(x: torch.Tensor) -> dict:
    """Of rows (..., heads, DEPTH): hundredths of mean, deviation, and the largest [column, magnitude] of each head."""
    x = x.flatten(0, -3)
    hundredths = lambda t: (t * UNIT).round().int().tolist()
    most, columns = x.abs().amax(0).topk(LARGEST)
    return {
        "mean": hundredths(x.mean(0)),
        "deviation": hundredths(x.std(0)),
        "largest": [
            [list(pair) for pair in zip(*each, strict=True)]
            for each in zip(columns.tolist(), hundredths(most), strict=True)
        ],
    }


def channels(model: Model, tokens: torch.Tensor) -> list[dict]:
    """For each layer the statistics of q, k and v over sequences (number, LENGTH)."""
    for layer in model.layers:
        layer.seen = []
    with torch.no_grad():
        model(tokens)
    return [
        {name: statistics_of(x) for name, x in zip("qkv", layer.seen[0], strict=True)}
        for layer in model.layers
    ]


def drawn(layer: int, keys: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """-> (q (1, 1, HEADS, DEPTH), k and v (1, keys, 1, DEPTH)) like those of a layer: the query is the last key's.

    layer: 0 is the first; q and k have RoPE
    """
    of_layer = json.loads(FILE.read_text())["layers"][layer]
    generator, found = torch.Generator().manual_seed(seed), []
    for name, rows in (("q", 1), ("k", keys), ("v", keys)):
        mean, deviation = (torch.tensor(of_layer[name][x]) / UNIT for x in ("mean", "deviation"))
        x = mean + deviation * torch.randn(1, rows, *mean.shape, generator=generator)
        found.append(x if name == "v" else rotated(x, torch.arange(keys - rows, keys)))
    return tuple(found)


def main() -> None:
    torch.set_num_threads(1)  # sums in one order
    data = text()
    tokens = torch.tensor(list(data))
    held_out = HELD_OUT * (LENGTH + 1)
    model = trained(tokens[:-held_out])
    rest = tokens[-held_out:].view(HELD_OUT, LENGTH + 1)
    with torch.no_grad():
        loss = model.loss(rest).item()
    made = {
        "text": f"{len(data)} bytes of docs/decisions, sha256 {hashlib.sha256(data).hexdigest()[:16]}",
        "steps": STEPS,
        "nats_a_byte_of_held_out_text": round(loss, 3),
        "unit": 1 / UNIT,
        "layers": channels(model, rest[:, :-1]),
    }
    words = json.dumps(made, separators=(",", ":"))
    FILE.write_text(
        words.replace('"mean"', '\n"mean"').replace('"deviation"', '\n"deviation"') + "\n"
    )
    print(f"{FILE.relative_to(ROOT)}: {FILE.stat().st_size} bytes, {loss:.3f} nats a byte")


if __name__ == "__main__":
    main()
