"""The tiles and families that calls of a model choose between by their lengths, for configs_for_model()."""

from __future__ import annotations


def tiles_of(model: dict, dtypes, rope_depth: int, rope_dtype: str | None) -> list[dict]:
    """What calls ask of tiles, from long queries to one. model: of a configuration; dtypes: model_dtypes.Dtypes."""
    from cute_fa4.compiler import policy
    from cute_fa4.sm100.choose_config import widens_rope
    from cute_fa4.sm100.config import BlockScaled, RopeTile

    if widens_rope(dtypes.stored, rope_dtype):
        return [{"pack_gqa": pack, "family": RopeTile.family} for pack in _packs(model["group"])]
    if "x" in model["descales"]:
        return [{"pack_gqa": pack, "family": BlockScaled.family} for pack in _packs(model["group"])]
    return tiles_by_lengths(model, policy.swaps() and not rope_depth, dtypes.fp8)


def shares_tiles(group: int) -> bool:
    """Whether the query heads of a group can share a tile of 128 rows."""
    return group > 1 and 128 % group == 0


def _packs(group: int) -> dict:
    """Whether query heads share a tile: they do not, and where they can, they do."""
    return dict.fromkeys((False, shares_tiles(group)))


def tiles_by_lengths(model: dict, swaps: bool, of_8_bits: bool = False) -> list[dict]:
    """What calls ask of tiles, from long queries to one.

    swaps: short queries have tiles with swapped operands; of_8_bits: keys are
    """
    from cute_fa4.compiler import policy
    from cute_fa4.sm100.choose_config import is_wide, tile_for, wide_family_for

    group = model["group"]
    if is_wide(model["head_dim"], model["head_dim_v"], of_8_bits):  # by the number of queries
        families = dict.fromkeys(wide_family_for(rows, 1, policy.pairs()) for rows in (1, 1000))
        return [{"pack_gqa": pack, "family": name} for pack in _packs(group) for name in families]
    shared = [(pack, None) for pack in _packs(group)]
    few = (tile_for(queries, group, None, swaps) for queries in range(1, 64))
    found = dict.fromkeys((*shared, *few))
    found = [{"pack_gqa": pack} | ({} if rows is None else {"rows": rows}) for pack, rows in found]
    return [*found, {"pack_gqa": shares_tiles(group), "family": "mha1q"}]


def with_pairs(tiles: list[dict], model: dict, mask) -> list[dict]:
    """The same, and pairs of CTAs beside CTAs of two query tiles, where the lengths of a call may choose them."""
    from cute_fa4.compiler import policy
    from cute_fa4.sm100.chip import FP8_DTYPES
    from cute_fa4.sm100.choose_config import is_wide
    from cute_fa4.sm100.mhapair import pays

    wide = is_wide(model["head_dim"], model["head_dim_v"], model["qkv_dtype"] in FP8_DTYPES)
    if wide or set("KVxy") & set(model["descales"]):
        return tiles
    asked = pays.Asked(
        *(model["qkv_dtype"], model["head_dim"], model["head_dim_v"], mask),
        plain=model["score_mod"] is None,
        exact=model["maximum"] == "exact",
    )
    if not policy.may_pair(pays.may_pay(asked)):
        return tiles
    of_two = [tile for tile in tiles if set(tile) == {"pack_gqa"}]
    return [*tiles, *(tile | {"family": "mhapair"} for tile in of_two)]
