"""A call needs a kernel that is neither loaded nor cached: message and action (CUTE_FA4_JIT, compiler/policy.py).

kernel mha2q_bf16_d128_g4_causal_lse_sm_100a_1a2b3c4d
  is neither loaded nor cached for executor 'cuda', CUTE_FA4_JIT=error
  asked    FA4Config(qkv_dtype='bf16', qk_depth=128, group=4, mask=Causal(), write_lse=True)
  nearest  mha2q_bf16_d128_g4_causal_sm_100a_5e6f7a8b, which differs in
           write_lse: True asked, False there
Add this to a catalogue, export it ... and load it ...

[[config]]
...
"""

from __future__ import annotations

import textwrap
import warnings
from dataclasses import fields, is_dataclass

from cute_fa4.aot import entry
from cute_fa4.aot.config_data import ConfigDataError
from cute_fa4.compiler import functions, policy, requirement
from cute_fa4.compiler.policy import JitError, JitWarning

SHOWN_DIFFERENCES = 6
REMEDY = """\
Add this to a catalogue, export it where the compiler is (python -m cute_fa4 export --catalogue FILE --out DIR) and
load it here (cute_fa4.aot.load(DIR)); or, with the compiler here, call cute_fa4.warmup at start.
"""


def check(config, executor: str) -> None:
    """Called before a kernel is compiled: returns, warns, or raises JitError, or CompilerMissingError."""
    now = policy.policy()
    if now == "error" and not policy.is_warming_up():
        raise JitError(explained(config, executor, f"{policy.VARIABLE}={now}"))
    try:
        requirement.check()
    except requirement.CompilerMissingError as error:
        raise type(error)(f"{error}\n{explained(config, executor, 'no compiler')}") from None
    if now == "warn" and not policy.is_warming_up():
        text = explained(config, executor, f"{policy.VARIABLE}={now}")
        warnings.warn(text, JitWarning, stacklevel=2)


def explained(config, executor: str, why: str) -> str:
    """One screen: the requested kernel, the nearest loaded kernel, and what to do."""
    lines = [
        f"kernel {config.name}",
        f"  is neither loaded nor cached for executor {executor!r}, {why}",
        f"  asked    {_wrapped(repr(config))}",
        *_nearest(config, executor),
    ]
    try:
        pasted = entry.toml(config)
    except ConfigDataError:
        own = (
            "It holds functions of your own, which a catalogue cannot spell: pass the configuration to aot.export, "
            "with score_mods.ScoreMod.of(function) as its score_mod or mask_mod, or call cute_fa4.warmup at start."
        )
        return "\n".join([*lines, own])
    return "\n".join([*lines, REMEDY, pasted])


def _nearest(config, executor: str) -> list[str]:
    there = [c for c in functions.known(executor) if type(c) is type(config)]
    if not there:
        return ["  nearest  none: nothing of this kind is loaded"]
    found = min(there, key=lambda other: len(differences(config, other)))
    differ = differences(config, found)
    said = [f"           {name}: {asked} asked, {other} there" for name, asked, other in differ]
    more = len(said) - SHOWN_DIFFERENCES
    if more > 0:
        said[SHOWN_DIFFERENCES:] = [f"           and {more} more"]
    return [f"  nearest  {found.name}, which differs in", *said]


def differences(a, b) -> list[tuple[str, str, str]]:
    """(name, value of a, value of b) of every field that differs, those of the schedule by their own names.

    >>> from cute_fa4.sm100.choose.config import FA4Config
    >>> differences(FA4Config(group=4), FA4Config().with_(claims=False))
    [('group', '4', '1'), ('claims', 'True', 'False')]
    """
    found = []
    for name in (f.name for f in fields(a)):
        left, right = getattr(a, name), getattr(b, name)
        if left == right:
            continue
        if name == "schedule" and type(left) is type(right) and is_dataclass(left):
            found += differences(left, right)
        else:
            found.append((name, repr(left), repr(right)))
    return found


def _wrapped(text: str) -> str:
    return "\n           ".join(textwrap.wrap(text, 105, break_long_words=False))
