"""profile(): run a function, model each kernel that it launched, and show where the cycles go.

    found = profile(my_function, x, y)
    print(found)                             a table
    found.write_json("profile.json"); found.write_html("profile.html")
    print(found.against(read_json("before.json")))

Kernels are executed with few blocks of launch control for a CTA, so that the recorded one stays short.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cute_fa4.emulator.host.host_binding import keeping_machine_code
from cute_fa4.emulator.host.session import use
from cute_fa4.emulator.model import launches, nvdisasm, ptxas, table
from cute_fa4.emulator.model.constants import Constant
from cute_fa4.emulator.model.profile import ModelError, Profile, modelled

FORMAT = 1
"""Of the JSON: changes with the meaning of a field."""
SETTINGS = {"checks": None, "claims": 1}
"""How launches execute: unchecked, and a CTA takes one further block by launch control, which shows what that costs."""


@dataclass
class Profiles:
    """Profiles of the kernels of a program, the longest first; failed: kernel -> why there is no profile of it."""

    kernels: list[Profile] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return table.text(self.kernels, self.failed)

    def against(self, before: Profiles) -> str:
        """A table of what differs from another version, kernel by kernel in their order."""
        return table.comparison(before.kernels, self.kernels)

    def as_dict(self) -> dict:
        """Plain data; from_dict() is the inverse."""
        kernels = [profile.as_dict() for profile in self.kernels]
        return {"format": FORMAT, "kernels": kernels, "failed": self.failed}

    @classmethod
    def from_dict(cls, data: dict) -> Profiles:
        """The profiles that as_dict() came from. ValueError for data of another format."""
        if data.get("format") != FORMAT:
            raise ValueError(
                f"format {data.get('format')!r}; accepted: {FORMAT}. Write the file again with --json"
            )
        return cls([Profile.from_dict(one) for one in data["kernels"]], dict(data["failed"]))

    def write_json(self, path) -> None:
        """All numbers, for programs and for against()."""
        Path(path).write_text(json.dumps(self.as_dict(), indent=1) + "\n")

    def write_html(self, path) -> None:
        """Tables and timelines as one page for a browser."""
        from cute_fa4.emulator.model import page

        Path(path).write_text(page.html(self.kernels, self.failed))


def read_json(path) -> Profiles:
    """What write_json wrote. ValueError for another format."""
    return Profiles.from_dict(json.loads(Path(path).read_text()))


@contextmanager
def profiling(cluster: int = 0, constants: dict[str, Constant] | None = None) -> Iterator[Profiles]:
    """Context whose launches are profiled; the Profiles are filled when it ends without an error.

    Functions of CuTe DSL that are compiled inside have the machine code of the compiler's own ptxas. Other PTX is
    assembled by a ptxas of this machine.
    cluster: number of the recorded cluster, or CTA, in x
    constants: those of the modelled chip; None: of the one that the .target of a kernel is for
    Raises NvdisasmError where nvdisasm is missing.
    """
    nvdisasm.find()
    found = Profiles()
    with (
        keeping_machine_code() as cubins,
        launches.recorded(cluster) as recorded,
        use(**SETTINGS),
    ):
        yield found
    for launch in recorded.values():
        try:
            found.kernels.append(_modelled(launch, cubins.get(launch.ptx), constants))
        except (ModelError, ptxas.PtxasError, nvdisasm.NvdisasmError, ValueError) as error:
            found.failed[launch.name] = str(error)
    found.kernels.sort(key=lambda profile: -profile.cycles)


def profile(function: Callable, *args, cluster: int = 0, **kwargs) -> Profiles:
    """Call function(*args, **kwargs) on the emulator and model the kernels that it launches; see profiling()."""
    with profiling(cluster) as found:
        function(*args, **kwargs)
    return found


def _modelled(launch: launches.Launch, cubin: bytes | None, constants) -> Profile:
    """cubin: of the compiler that made the PTX, where it was compiled in the context; else ptxas assembles it."""
    cubin = cubin or ptxas.assemble(launch.ptx)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        listing = nvdisasm.disassemble(Path(file.name))
    return modelled(launch, cubin, listing, constants)
