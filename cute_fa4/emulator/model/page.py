"""Profiles as one HTML file that opens in a browser: bars, tables and a timeline with source lines; no network."""

from __future__ import annotations

import json
from dataclasses import asdict
from html import escape
from pathlib import Path

from cute_fa4.emulator.model import table
from cute_fa4.emulator.model.names import PIPES, WORDS
from cute_fa4.emulator.model.profile import Profile

# Fill and text of a kind of segment, and what the legend says of it.
COLORS = {
    "work": ("#2f6fb0", "#ffffff"),
    "wait": ("#e8a33d", "#222222"),
    "result": ("#d9d9d9", "#222222"),
    "meet": ("#c7b3dd", "#222222"),
    "drain": ("#b5d6c3", "#222222"),
    "other": ("#f3f3f3", "#555555"),
    "engine": ("#3b8f5c", "#ffffff"),
}
LEGEND = {
    "work": "issues instructions, or waits for a pipe or an issue slot",
    "wait": "waits for an mbarrier",
    "result": "waits for a result, such as a load",
    "meet": "waits at bar.sync or a cluster barrier",
    "drain": "waits for bulk stores",
    "engine": "tensor core and copies at work",
}
_KINDS = {WORDS[kind]: kind for kind in ("meet", "drain", "other")}
_KINDS |= {WORDS[kind]: "work" for kind in ("issue", "stall", "turn")}
_KINDS |= {words: "work" for words in PIPES.values()}


def html(kernels: list[Profile], failed: dict[str, str]) -> str:
    """The text of the page."""
    data = {
        "kernels": [_kernel(profile) for profile in kernels],
        "failed": failed,
        "colors": COLORS,
        "words": LEGEND,
    }
    # "</" would end the script that holds the data.
    text = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    template = Path(__file__).with_name("profile_page.html").read_text()
    title = ", ".join(table.short(profile.kernel) for profile in kernels) or "profile"
    return template.replace("TITLE", escape(title), 1).replace("DATA", text, 1)


def _kernel(profile: Profile) -> dict:
    data = profile.as_dict()
    data |= {
        "short": table.short(profile.kernel),
        "head": table.head(profile)[1:],
        "busyRows": [(PIPES.get(name, name), share) for name, share in profile.busy.items()],
        "roles": [asdict(role) for role in table.shown_roles(profile)],
        "what_if": dict(table.what_ifs(profile)),
    }
    for role in data["roles"]:
        role["kinds"] = {what: _KINDS.get(what, "result") for what in role["cycles"]}
        rest = "before its first or after its last instruction"
        role["kinds"][rest] = "other"
    return data
