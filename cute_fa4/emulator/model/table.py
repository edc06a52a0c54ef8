"""Profiles as text: one table a kernel, and the comparison of two versions."""

from __future__ import annotations

from cute_fa4.emulator.model.constants import fitted_b200
from cute_fa4.emulator.model.names import PIPES
from cute_fa4.emulator.model.profile import UNCHANGED, Profile
from cute_fa4.system import gains

LEAST_SHARE = 0.01
"""Of a turn: what takes less is left out of the text, not of the JSON."""
MOST_ROWS = 10
MOST_WHAT_IFS = 12


def text(kernels: list[Profile], failed: dict[str, str]) -> str:
    """All kernels, one after the other."""
    parts = [kernel_text(profile) for profile in kernels]
    parts += [f"{name}: no estimate. {why}" for name, why in failed.items()]
    if not parts:
        return "No kernel was launched on the emulator."
    return "\n\n".join(parts)


def kernel_text(profile: Profile) -> str:
    """The table of one kernel."""
    lines = [*head(profile), ""]
    unit = "turn" if profile.loop else "CTA"
    lines += [f"Busy, of a {unit}'s {profile.turn:,.0f} cycles; what binds: {profile.bound}"]
    for name, share in profile.busy.items():
        if share >= LEAST_SHARE:
            lines.append(f"  {share:6.0%}  {PIPES.get(name, name)}")
    shown = shown_roles(profile)
    for role in shown:
        lines += ["", _role_head(role)]
        lines += _rows(role.cycles, profile.turn)
    if len(shown) < len(profile.roles):
        lines += ["", "The warps of the other CTAs are in the JSON."]
    if profile.waits:
        names = {role.name for role in shown}
        lines += ["", f"Waits for mbarriers, cycles a {unit}"]
        for wait in [w for w in profile.waits if w.role in names][:MOST_ROWS]:
            if wait.cycles >= LEAST_SHARE * profile.turn:
                who = ", ".join(f"{name} {share:.0%}" for name, share in wait.ended_by.items())
                lines.append(
                    f"  {wait.cycles:8,.0f}  {wait.role} waits for {wait.barrier} at {wait.at}; ended by {who}"
                )
    lines += ["", f"Critical path, cycles a {unit}: the chain of causes that sets the pace"]
    lines += _rows(profile.path, profile.turn)
    lines += [
        "",
        f"What if: cycles that the CTA's {profile.cycles:,.0f} would be at least, without",
    ]
    for name, cycles in what_ifs(profile):
        lines.append(f"  {cycles:8,.0f}  {cycles / profile.cycles - 1:+5.0%}  {name}")
    lines += ["", *(f"Note: {note}" for note in profile.notes), profile.error]
    return "\n".join(lines)


def head(profile: Profile) -> list[str]:
    """The first lines: which kernel, its resources, its cycles."""
    launch = profile.launch
    clock = fitted_b200()["clock_ghz"].value
    grid, block = (" x ".join(map(str, launch[name])) for name in ("grid", "block"))
    what = "cluster" if launch["cluster"][0] > 1 else "CTA"
    lines = [
        short(profile.kernel),
        f"grid {grid}, block {block}, {launch['shared_bytes']:,} bytes of shared memory, "
        f"{profile.registers} registers a thread, {profile.stack_bytes} bytes of stack",
        f"One {what}: {profile.cycles:,.0f} cycles ({profile.cycles / clock / 1000:,.1f} us at {clock} GHz), "
        "modelled alone on its SM",
    ]
    held, waves = launch["ctas_per_sm"], launch["waves"]
    lines.insert(
        2,
        f"An SM holds {held} of its CTAs at a time, limited by {launch['limited_by']}; the grid runs in "
        f"{waves} wave{'s' * (waves > 1)}",
    )
    if profile.loop:
        lines.append(
            f"Steady state: {profile.turn:,.0f} cycles a turn of the main loop ({profile.loop}; {profile.turns} turns)"
        )
    else:
        lines.append(
            "No warp goes three times round a loop: the figures below are of the whole CTA"
        )
    return lines


def short(kernel: str) -> str:
    """The name of a kernel without the arguments that CuTe DSL appends.

    >>> short("kernel_cutlass_kernel_GEMM_object_at__tensorptrf32_0"), short("scale")
    ('kernel_cutlass_kernel_GEMM', 'scale')
    """
    return kernel.split("_object_at_")[0]


def shown_roles(profile: Profile) -> list:
    """Of a cluster the roles of the CTA that sets the pace, else all."""
    return [role for role in profile.roles if role.cta == profile.cta]


def what_ifs(profile: Profile) -> list[tuple[str, float]]:
    """Changes that lower the bound by gains.LEAST_GAIN of a CTA (the JSON has all), and the bound without a change."""
    unchanged = profile.what_if.get(UNCHANGED, profile.cycles)
    least = unchanged - gains.LEAST_GAIN * profile.cycles
    rows = [(name, cycles) for name, cycles in profile.what_if.items() if cycles < least]
    return [*rows[:MOST_WHAT_IFS], (UNCHANGED, unchanged)]


def _role_head(role) -> str:
    plural = "s" * (len(role.warps) > 1)
    name = (
        role.name
        if role.name.startswith("warp")
        else f"{role.name} (warp{plural} {_short(role.warps)})"
    )
    loop = f", loop at {role.loop}: {role.turns} turns" if role.loop else ""
    return f"{name}: {role.instructions:,.0f} instructions a warp, {role.registers} registers a thread{loop}"


def _short(warps: list[int]) -> str:
    return str(warps[0]) if len(warps) == 1 else f"{warps[0]}-{warps[-1]}"


def _rows(cycles: dict[str, float], whole: float) -> list[str]:
    shown = [(name, value) for name, value in cycles.items() if value >= LEAST_SHARE * whole]
    return [
        f"  {value:8,.0f}  {value / max(1.0, whole):5.0%}  {name}"
        for name, value in shown[:MOST_ROWS]
    ]


def comparison(before: list[Profile], after: list[Profile]) -> str:
    """What differs between two versions: kernels of one name, or else in their order."""
    parts = []
    for old, new in pairs(before, after):
        rows = [("cycles of a CTA", old.cycles, new.cycles), ("cycles a turn", old.turn, new.turn)]
        rows += [("registers a thread", old.registers, new.registers)]
        rows += [("bytes of stack", old.stack_bytes, new.stack_bytes)]
        rows += _both("busy: ", old.busy, new.busy, 100)
        olds, news = ({role.name: role for role in p.roles} for p in (old, new))
        for name in dict.fromkeys([*news, *olds]):
            before_of = olds[name].cycles if name in olds else {}
            after_of = news[name].cycles if name in news else {}
            rows += _both(f"{name}: ", before_of, after_of)
        shown = [row for row in rows[:2]]
        shown += [
            row for row in rows[2:] if abs(row[2] - row[1]) >= max(1.0, LEAST_SHARE * abs(row[1]))
        ]
        lines = [
            f"{short(old.kernel)} -> {short(new.kernel)}",
            f"{'before':>10} {'after':>10} {'':>7}",
        ]
        times = {name for name, *_ in rows[:2]}
        for name, a, b in shown:
            share = b / a - 1 if a else 0.0
            change = (gains.change(share) if name in times else f"{share:+.1%}") if a else "new"
            lines.append(f"{a:10,.0f} {b:10,.0f} {change:>7}  {name}")
        parts.append("\n".join([*lines, f"binds: {old.bound} -> {new.bound}", new.error]))
    return "\n\n".join(parts) or "No kernel to compare."


def _both(prefix: str, a: dict, b: dict, factor: float = 1) -> list[tuple[str, float, float]]:
    unit = " (%)" if factor == 100 else ""
    return [
        (f"{prefix}{PIPES.get(name, name)}{unit}", a.get(name, 0) * factor, b.get(name, 0) * factor)
        for name in dict.fromkeys([*b, *a])
    ]


def pairs(before: list[Profile], after: list[Profile]) -> list[tuple[Profile, Profile]]:
    """Kernels of two versions that belong together: by name, else in their order."""
    named = {profile.kernel: profile for profile in before}
    rest = [p for p in before if p.kernel not in {q.kernel for q in after}]
    found = []
    for new in after:
        old = named.get(new.kernel) or (rest.pop(0) if rest else None)
        if old is not None:
            found.append((old, new))
    return found
