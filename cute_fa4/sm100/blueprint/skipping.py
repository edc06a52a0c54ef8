"""Skip-softmax (steps/skipped.py): which problems may have it, and choices of a schedule that it excludes."""

EXCLUDED = dict(
    latent=False, share_keys=False, token_scales=(), block_scales=False, kv_dtype=None,
)  # fmt: skip
ORDERS = "p_over_s", "p_beside_s"  # P V of a tile is issued, or not, by multiply_pv


def contradictions(problem) -> list[str]:
    """What does not go with it."""
    if not problem.skip_softmax:
        said = "count_skipped=True with skip_softmax=False: no key tile is skipped: use count_skipped=False"
        return [said] if problem.count_skipped else []
    return [
        f"skip_softmax=True with {name}={getattr(problem, name)!r} is not supported: use {value!r}"
        for name, value in EXCLUDED.items()
        if getattr(problem, name) != value
    ]


def of_schedule(problem, schedule) -> list[str]:
    """The same for a schedule of two query tiles: its votes are about exact maxima, and about one query tile each."""
    if not problem.skip_softmax:
        return []
    values = dict(maximum="lagged", lone_tiles=True, own_parts=True, one_query_tile=True)
    why = [
        f"{name}={value!r} with skip_softmax=True is not supported: use "
        f"{'exact' if value == 'lagged' else False!r}"
        for name, value in values.items()
        if getattr(schedule, name) == value
    ]
    if schedule.order not in (None, *ORDERS):
        why.append(
            f"order={schedule.order!r} with skip_softmax=True is not supported: use {' or '.join(ORDERS)}"
        )
    return why
