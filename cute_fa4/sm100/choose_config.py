"""Problem -> FA4Config, as an ordered list of one-line rules; nothing but the problem is read."""

from functools import lru_cache

from . import masks
from .config import FA4Config


def choose_config(
    *,
    qkv_dtype: str,
    head_dim: int,
    head_dim_v: int | None = None,
    group: int = 1,
    causal: bool = False,
    write_lse: bool = False,
    arch: str = "sm_100a",
    **choices,
) -> FA4Config:
    """The configuration that serves a problem best; the caller looks at its `refusals()`.

    choices: further fields of FA4Config that the call decides: layouts, mask (instead of causal), sink, score_mod, ...

    Nothing here depends on lengths, batch or head count: one compile serves them all.
    """
    choices.setdefault("mask", masks.Causal() if causal else masks.Full())
    cfg = FA4Config(
        qkv_dtype=qkv_dtype,
        qk_depth=head_dim,
        ov_depth=head_dim_v,
        group=group,
        write_lse=write_lse,
        arch=arch,
        **choices,
    )
    if head_dim >= 1 and cfg.padded_ov_depth <= 64:
        # Tensor memory would allow 192 keys a tile, but 192 f32 scores do not fit the 192 registers of a
        # softmax thread; reading S twice instead costs more than the wider tile saves.
        cfg = cfg.with_(bn_cap=128)
    return cfg


def packs_gqa(seqlen_q: int, group: int) -> bool:
    """Whether the heads of a group share a query tile: when whole groups fit a tile and fewer CTAs are launched.

    >>> packs_gqa(1, 8), packs_gqa(256, 8), packs_gqa(300, 8), packs_gqa(1, 1), packs_gqa(1, 7)
    (True, False, True, False, False)
    """
    fits = FA4Config.BM // 2 % group == 0
    return fits and _blocks(seqlen_q * group) < group * _blocks(seqlen_q)


def _blocks(rows: int) -> int:
    return -(-rows // FA4Config.BM)


@lru_cache(maxsize=4096)
def config_for(**choices) -> FA4Config:
    """The configuration that runs such a problem; ValueError with every reason if none does."""
    config = choose_config(**choices)
    refusals = config.refusals()
    if refusals:
        raise ValueError("q, k, v: " + "; ".join(refusals))
    return config
