"""Problem and family -> FA4Config; which_kernel.py chooses the family of a call."""

from dataclasses import fields, replace

from ...dtypes import is_quantized
from ..blueprint import bands, tuning
from ..blueprint.reach import DEEP, DEEP_OF_FP8, DEPTHS, QK_DEPTHS, WIDE_DEPTHS, depths_of, in_words
from ..blueprint.schedule import Schedule
from ..blueprint.tiles import KEYS_PER_TILE
from ..combine.config import CombineConfig
from ..few_rows.schedule import CLUSTER_PARTS
from ..latent.dequantized.formats import BYTES_IN_PAGE, OF_584, ROW_BYTES
from ..latent.tiles import LATENT_DEPTH, ROPE_DEPTH
from ..two_tiles.pair.schedule import Pair
from ..wide.pair.schedule import WidePair
from .config import SCHEDULES, FA4Config
from .rows_of_tiles import in_units
from .which_kernel import Call, which_kernel

__all__ = [
    "ALL_DEPTHS",
    "CLUSTER_PARTS",
    "DEPTHS",
    "KEYS_PER_TILE",
    "QK_DEPTHS",
    "PAIRED",
    "choose_config",
    "columns_of_v",
    "config_for",
    "LATENT_DEPTHS",
    "LATENT_ROW_BYTES",
    "LATENT_BYTES_IN_PAGE",
    "LATENT_PAGE_ROW_BYTES",
    "depths_of",
    "in_words",
    "split_configs",
]

# DEPTHS, QK_DEPTHS: head dims that most families run, of V and O, and of Q and K.
ALL_DEPTHS = WIDE_DEPTHS + DEEP  # that some family runs, of either
PAIRED = (Pair, WidePair)  # schedules of CTAs that share their MMAs, each with what runs them alone
LATENT_DEPTHS = (LATENT_DEPTH + ROPE_DEPTH, LATENT_DEPTH)  # of K and V in a latent cache
LATENT_ROW_BYTES = ROW_BYTES  # of a row with scales and rotary columns of its own
LATENT_BYTES_IN_PAGE = (
    BYTES_IN_PAGE  # of a row with its scales, which come after all rows of a page
)
LATENT_PAGE_ROW_BYTES = OF_584.nbytes  # of such a row without them
FAMILIES = {schedule.family: schedule for schedule in SCHEDULES.values()}
SCHEDULE_CHOICES = frozenset(f.name for cls in FAMILIES.values() for f in fields(cls))


def choose_config(
    *,
    qkv_dtype: str,
    head_dim: int,
    head_dim_v: int | None = None,
    group: int = 1,
    causal: bool = False,
    write_lse: bool = False,
    arch: str = "sm_100a",
    family: str | None = None,
    **choices,
) -> FA4Config:
    """The best configuration for a problem; the caller checks its `refusals()`.

    choices: further fields of FA4Config that the call sets (layouts, mask instead of causal, sink, score_mod, ...)
    and of its schedule (claims, rows of a tile of few rows, ...)
    family: of the kernel, a name of FAMILIES, as which_kernel returns for a call; None: its choice where lengths must
    not matter
    head_dim_v: beyond 256 the kernel has half of the columns, and a call launches it for either half (columns_of_v)

    Nothing else here depends on lengths, batch or head count: one compile serves them all.
    """
    of_schedule = {name: choices.pop(name) for name in SCHEDULE_CHOICES & set(choices)}
    choices.setdefault("mask", bands.Causal() if causal else bands.Full())
    kv_dtype = choices.get("kv_dtype")
    whole = in_units(head_dim, choices.get("rope_depth", 0), kv_dtype)
    if not choices.get("latent"):
        of_8_bits = is_quantized(kv_dtype or qkv_dtype) and not whole
        head_dim_v = columns_of_v(head_dim_v or head_dim, of_8_bits)
    if "schedule" not in choices:
        if family is None:
            asked = {**choices, "qkv_dtype": qkv_dtype, "head_dim": head_dim, "group": group}
            asked |= {"head_dim_v": head_dim_v, "rows": of_schedule.get("rows")}
            kernel = which_kernel(Call.of_choices(asked, fixed=True))
            family = kernel.family
            if kernel.rows is not None:
                of_schedule["rows"] = kernel.rows
        choices["schedule"] = _schedule(family, **of_schedule)
    return FA4Config(
        qkv_dtype=qkv_dtype,
        qk_depth=head_dim,
        ov_depth=head_dim_v,
        group=group,
        write_lse=write_lse,
        arch=arch,
        **choices,
    )


def _schedule(family: str, **choices) -> Schedule:
    if family not in FAMILIES:
        raise ValueError(f"family: {family!r}; accepted: {', '.join(FAMILIES)}")
    cls = FAMILIES[family]
    for name in {"maximum", "exponential", "lone_tiles", "row_sum"} - {f.name for f in fields(cls)}:
        if choices.get(name) in (None, "exact", False):
            choices.pop(name, None)  # it has no other
    foreign = sorted(set(choices) - {f.name for f in fields(cls)})
    if foreign:
        raise ValueError(
            f"family={family!r} with {', '.join(foreign)}: choices of another schedule than {cls.__name__}"
        )
    return cls(**choices)


def columns_of_v(head_dim_v: int, of_8_bits: bool = False) -> int:
    """Columns of V that a kernel has: all, or half of them, in two successive launches (calls/split_keys/halves.py).

    of_8_bits: it holds V of 8 bits, or whole rows of it dequantized

    >>> columns_of_v(256), columns_of_v(512), columns_of_v(272), columns_of_v(256, of_8_bits=True)
    (256, 256, 136, 128)
    """
    return head_dim_v // 2 if head_dim_v in (DEEP_OF_FP8 if of_8_bits else DEEP) else head_dim_v


@tuning.cached(maxsize=4096)
def config_for(**choices) -> FA4Config:
    """The configuration that runs such a problem; ValueError with every reason if none does."""
    config = choose_config(**choices)
    refusals = config.refusals()
    if refusals:
        of_out = all(why.startswith("o_dtype=") for why in refusals)
        raise ValueError(("out: " if of_out else "q, k, v: ") + "; ".join(refusals))
    return config


def split_configs(
    config: FA4Config, write_lse: bool, shared: bool = False, dependent_launch: bool | None = None
) -> tuple[FA4Config, CombineConfig]:
    """The two kernels of a call whose keys are split: the one of `config` into a workspace, and what merges it.

    Pairs of CTAs do not split keys: with too few blocks for the chip, there is nothing to pair. Parts are
    merged by their log-sum-exp, of weights before they are rounded. Sinks of a latent cache come after the merge.

    shared: every CTA takes as many keys as any other, not every part of a sequence.
    dependent_launch: of both kernels; None: as the schedule has it for split keys, where the call left that open
    """
    dependent_launch = _launch_of(config, dependent_launch)
    if isinstance(config.schedule, PAIRED):
        config = config.with_(schedule=config.schedule.alone)
    sink: dict = {}
    if config.sink and config.latent:
        sink = {"sink": True, "sink_dtype": config.sink_dtype}
        config = config.with_(sink=False, sink_dtype="f32")
    partial = config.with_(
        split_keys=True,
        share_keys=shared,
        write_lse=True,
        o_dtype="f32",
        dependent_launch=dependent_launch,
    )
    combine = CombineConfig(
        config.o_dtype,
        config.ov_depth,
        packed=config.q_layout == "packed",
        seqused_q=config.seqused_q,
        shared=shared,
        write_lse=bool(write_lse),
        **sink,
        dependent_launch=partial.schedule.dependent_launch,
        arch=config.arch,
    )
    return partial, combine


def sorted_config(
    config: FA4Config, cut: bool = False, dependent_launch: bool | None = None
) -> FA4Config:
    """The attention kernel of a call whose work tiles are sorted by their lists; cut: and long lists cut into parts.

    dependent_launch: as in split_configs
    """
    changes = dict(cut_lists=True, write_lse=True) if cut else {}
    early = _launch_of(config, dependent_launch)
    return config.with_(longest_first=True, dependent_launch=early, **changes)


def cut_configs(
    config: FA4Config, dependent_launch: bool | None = None
) -> tuple[FA4Config, CombineConfig]:
    """The two kernels of a call whose long lists are cut: attention, and what merges the parts."""
    attention = sorted_config(config, True, dependent_launch)
    combine = CombineConfig(
        config.o_dtype,
        config.ov_depth,
        seqused_q=config.seqused_q,
        cut=True,
        write_lse=True,
        dependent_launch=attention.schedule.dependent_launch,
        arch=config.arch,
    )
    return attention, combine


def _launch_of(config: FA4Config, dependent_launch: bool | None) -> bool | None:
    """dependent_launch of the kernels that a call has instead of `config`'s: as given, or where the call chose it."""
    if dependent_launch is None and not _chose_launch(config):
        return config.schedule.dependent_launch
    return dependent_launch


def _chose_launch(config: FA4Config) -> bool:
    """Whether dependent_launch has the value that the schedule would choose."""
    schedule = replace(config.schedule, dependent_launch=None)
    return schedule.resolved(config) == config.schedule
