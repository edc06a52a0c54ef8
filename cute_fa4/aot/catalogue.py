"""Catalogue files: sets of kernels to export, as TOML.

    [defaults]                    # optional; for fields that the sets below omit
    dtype = "bf16"
    page_sizes = [16, 64]

    [[model]]                     # the arguments of configs_for_model
    name = "Llama 3 8B"
    head_dim = 128
    heads_q = 32
    heads_kv = 8

    [[config]]                    # one FA4Config: the arguments of choose_config, and of the schedule
    name = "encoder"
    qkv_dtype = "bf16"
    head_dim = 64
    mask = "Window(left=True, right=False)"
    score_mod = "soft_cap(30.0)"

    [[append]]                    # the kernel that writes new rows to a cache
    dtype = "bf16"
    head_dim = 64
    page_size = 16

entry.py has every field. catalogues/serving.toml ships with the package; its name is "serving".
"""

from __future__ import annotations

from pathlib import Path

from cute_fa4.aot import entry as entries
from cute_fa4.aot.manifest import ExportError
from cute_fa4.system import toml

SHIPPED = Path(__file__).parent / "catalogues"


def shipped() -> list[str]:
    """Names of the catalogues that come with the package."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def read_catalogue(path, *, models: tuple[str, ...] | None = None) -> list:
    """Configurations of a catalogue, without duplicates. path is a file, or a name of shipped().

    models  only the sets of these names. Raises ExportError, with the place, for invalid entries.
    """
    path = _path(path)
    content = _parse(path)
    unknown = sorted(set(content) - {"defaults", *entries.KINDS})
    if unknown:
        raise ExportError(
            f"{path}: {unknown}; accepted: [defaults], {', '.join(f'[[{kind}]]' for kind in entries.KINDS)}"
        )
    defaults = content.get("defaults", {})
    found, names = [], []
    for kind in entries.KINDS:
        tables = content.get(kind, [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise ExportError(f"{path}: {kind} is not a list of tables; accepted: [[{kind}]]")
        for i, entry in enumerate(tables):
            name = entry.get("name", f"[[{kind}]] number {i + 1}")
            names.append(name)
            if models is not None and name not in models:
                continue
            given = {k: v for k, v in defaults.items() if kind == "model"} | entry
            given.pop("name", None)
            found += entries.configs_of(kind, given, f"{path}: {name}")
    missing = [name for name in models or () if name not in names]
    if missing:
        raise ExportError(f"{path}: no set named {missing}; accepted: {', '.join(names)}")
    if not found:
        raise ExportError(f"{path}: no [[model]], [[config]] or [[append]]")
    return list(dict.fromkeys(found))


def _path(path) -> Path:
    if str(path) in shipped():
        return SHIPPED / f"{path}.toml"
    path = Path(path)
    if not path.is_file():
        raise ExportError(
            f"{path}: no such file; accepted: a TOML file, or one of {', '.join(shipped())}"
        )
    return path


def _parse(path: Path) -> dict:
    try:
        return toml.read(path)
    except ValueError as error:
        raise ExportError(str(error)) from None
