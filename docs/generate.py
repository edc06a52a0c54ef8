"""Write the generated documentation: docs/barriers.md, docs/layouts.md, the tree in docs/architecture.md, plots, the
count of PTX spellings in docs/emulator_coverage.md, the architectures in docs/conformance.md, the summaries of
docs/data/ in docs/verification.md, modelled and published tables (docs/data/modelled.json, benchmarks/), and plots.

python docs/generate.py           write the files
python docs/generate.py --check   exit 1 and name the files that are out of date
"""

import argparse
import ast
import json
import re
import sys
from collections import Counter
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

from benchmarks.cycle_model import (  # noqa: E402
    bounds,
    hopper_energy,
    pages,
    peers,
    plots,
    power,
    recorded,
)
from benchmarks.cycle_model.decode import recording  # noqa: E402
from cute_fa4.emulator.instructions import targets  # noqa: E402
from cute_fa4.emulator.model import stated_error  # noqa: E402
from cute_fa4.emulator.model.constants import fitted_b200  # noqa: E402
from cute_fa4.hopper import report  # noqa: E402
from cute_fa4.layouts import pictures  # noqa: E402
from cute_fa4.sm100.blueprint import choices, tuning  # noqa: E402
from cute_fa4.sm100.blueprint.barriers import BarrierTable, mixed_rows  # noqa: E402
from cute_fa4.sm100.choose import pays  # noqa: E402
from cute_fa4.sm100.choose.choose_config import choose_config  # noqa: E402
from cute_fa4.sm100.choose.config import (  # noqa: E402
    BlockScaled,
    DequantizedTile,
    FA4Config,
    LatentPair,
    LatentRows,
    LatentRowsPair,
    LatentTile,
    OneTile,
    Pair,
    RopeTile,
    SlotTwoTiles,
    SlotWideTile,
    SwappedTile,
    WidePair,
    WideTile,
)
from cute_fa4.sm100.indexer.config import IndexerConfig  # noqa: E402
from cute_fa4.system import gains  # noqa: E402
from tests.emulator import spellings  # noqa: E402
from tests.emulator.mutations import table  # noqa: E402

SCALES = ("scales_full", "scales_empty")


def barriers_document() -> str:
    config = choose_config(qkv_dtype="bf16", head_dim=128, maximum="exact")
    one_tile, pair = FA4Config(schedule=OneTile()), FA4Config(schedule=Pair())
    beside = choose_config(
        qkv_dtype="bf16", head_dim=64, order="p_beside_s"
    ).barriers  # has every row
    added = tuple(row for row in beside.rows if row.name not in config.barriers)
    rows = "\n".join(
        f"| {index * 8} | `{name}` | {barrier.count} | {' + '.join(map(str, barrier.raised_by))} "
        f"| {barrier.awaited_by} |"
        for index, name, barrier in config.barriers.instances()
    )
    reuse = _reuse(beside)
    few = FA4Config(schedule=SwappedTile()).barriers
    few_reuse = _reuse(few)
    problem = dict(qk_depth=576, ov_depth=512, latent=True, group=16, pack_gqa=True)
    dequantized = FA4Config(kv_dtype="e4m3", schedule=DequantizedTile()).barriers
    in_slots = FA4Config(kv_dtype="e4m3", schedule=SlotTwoTiles()).barriers
    slots = tuple(row for row in in_slots.rows if row.name in ("raw_full", "kv_full", "work_read"))
    latent = FA4Config(**problem, schedule=LatentTile()).barriers
    pair_of_latent = FA4Config(**problem | {"group": 128}, schedule=LatentPair()).barriers
    stored = dict(kv_dtype="e4m3", rope_dtype="bf16", scale_dtype="f32")
    of_rows = FA4Config(**problem | stored, schedule=LatentRows()).barriers
    rows_pair = FA4Config(**problem | stored | {"group": 128}, schedule=LatentRowsPair()).barriers
    wide = FA4Config(qk_depth=256, schedule=WideTile()).barriers
    wide_pair = FA4Config(qk_depth=256, schedule=WidePair()).barriers
    of_rope = dict(qk_depth=192, ov_depth=128, rope_depth=64, rope_dtype="e4m3")
    rope = FA4Config(**of_rope, schedule=RopeTile()).barriers
    wide_slots = FA4Config(qk_depth=256, kv_dtype="e4m3", schedule=SlotWideTile()).barriers
    in_wide = tuple(
        row for row in wide_slots.rows if row.name in ("raw_full", "kv_full", "work_read")
    )
    scaled = FA4Config(qkv_dtype="e4m3", descales="xy", schedule=BlockScaled()).barriers
    of_blocks = tuple(row for row in scaled.rows if row.name in ("s_apart", *SCALES))
    indexer = IndexerConfig(64, 2).barriers
    return f"""# Barriers

This page lists every mbarrier of the forward kernels. The first table is printed from
`cute_fa4/sm100/two_tiles/barriers.py` for bf16, head dim {config.qk_depth} and the exact maximum
({config.barriers.kv_slots} ring slots, {config.barriers.total} mbarriers).

## By kind

```
{config.barriers.text()}
```

The order with P beside S (head dim 64, `p_beside_s.py`) adds two mbarriers after `p_last`. With a lagged
maximum (the default in bf16 up to head dim 128, `work/checked.py`) there is one more, and the queue has three
entries:

```
{BarrierTable(added, beside.numbers).text()}
```

Each CTA of a pair (`cute_fa4/sm100/two_tiles/pair/barriers.py`, {pair.barriers.kv_slots} ring slots) has the
following. "At 0": both CTAs raise the mbarrier of the first CTA:

```
{pair.barriers.text()}
```

The kernel with one query tile (`cute_fa4/sm100/one_tile/barriers.py`, {one_tile.barriers.kv_slots} ring slots):

```
{one_tile.barriers.text()}
```

With block scales of Q and K (`cute_fa4/sm100/two_tiles/block_scaled/barriers.py`) two query tiles have these in
addition to the mbarriers of cross-stage P:

```
{BarrierTable(of_blocks, scaled.numbers).text()}
```

With 16-bit RoPE columns beside 8-bit K, these kernels wait between the MMAs of the two kinds
([decision 0028](decisions/0028-products-of-two-kinds-make-one-s.md)):

```
{BarrierTable(mixed_rows(True), config.barriers.numbers).text()}
```

A waiter must observe each phase before the next one completes. For each mbarrier, this is guaranteed as follows:

{reuse}

## Swap-AB decode

The swap-AB decode kernel (`few_rows/barriers.py`, {few.kv_slots} ring slots at head dim 128):

```
{few.text()}
```

{few_reuse}

## 16-bit queries over an 8-bit cache

With few query rows (`few_rows/dequantized/barriers.py`, {dequantized.kv_slots} ring slots at head dim 128).
Mbarriers without a reason are as above:

```
{dequantized.text()}
```

{_reuse(dequantized, besides=few)}

With many query rows, key tiles are dequantized in their slots (`two_tiles/dequantized/barriers.py`). These
mbarriers replace those of the same name of two query tiles:

```
{BarrierTable(slots, in_slots.numbers).text()}
```

## Latent caches

The kernel for multi-head latent attention (`latent/barriers.py`, tiles of 16 rows) has a ring of slabs and a
ring of RoPE columns. Reasons are as above:

```
{latent.text()}
```

Two CTAs that share 128 rows (`latent/pair/barriers.py`) have a ring of {pair_of_latent.kv_slots} units. "At 0"
is as above:

```
{pair_of_latent.text()}
```

Rows of 656 bytes are dequantized between two rings (`latent/dequantized/barriers.py`, tiles of 16 rows). Other
reasons are as above:

```
{of_rows.text()}
```

{_reuse(of_rows, besides=latent)}

Rows of 576 bytes, under queries of 16 bits, have 8-bit RoPE columns: they come through `kv_full` as a fifth slab,
dequantize raises `rope_full` with 256 threads, and awaits `rope_empty`.

More than 32 query rows over such a cache run on CTA pairs (`latent/pair_dequantized/barriers.py`), whose
dequantizing warps copy from one ring to another. 8-bit RoPE columns have `stored_rope_full` and
`stored_rope_empty`, too:

```
{rows_pair.text()}
```

{_reuse(rows_pair, besides=of_rows)}

## Head dims up to 512

The kernel with one O, whose ring slots hold 64 columns of a key tile (`wide/barriers.py`, {wide.kv_slots} ring
slots at head dim 256):

```
{wide.text()}
```

{_reuse(wide)}

Each CTA of a pair for such head dims (`wide/pair/barriers.py`, {wide_pair.kv_slots} ring slots):

```
{wide_pair.text()}
```

8-bit RoPE columns in a separate tensor are dequantized in their slot (`wide/dequantized_rope/barriers.py`,
{rope.kv_slots} ring slots):

```
{rope.text()}
```

{_reuse(rope, besides=wide)}

8-bit keys of such head dims, or with RoPE columns, are dequantized in their slots (`wide/dequantized/barriers.py`).
A slot holds 128 columns. These mbarriers replace those of the same name:

```
{BarrierTable(in_wide, wide_slots.numbers).text()}
```

The indexer (`indexer/barriers.py`, {indexer.kv_slots} ring slots, each a tile of 128 keys):

```
{indexer.text()}
```

{_reuse(indexer)}

## In memory

The mbarriers of the first kernel. Count is the argument of `mbarrier.init`: the number of arrivals that
complete a phase. Byte offsets start at the first mbarrier.

| byte | mbarrier | count | raised by | awaited by |
|---:|---|---:|---|---|
{rows}
"""


def _reuse(table: BarrierTable, besides: BarrierTable | None = None) -> str:
    """Reasons for reuse, without those that table besides also has."""
    said = {} if besides is None else {row.name: row.reuse for row in besides.rows}
    rows = (row for row in table.rows if said.get(row.name) != row.reuse)
    return "\n".join(f"- `{barrier.name}`: {barrier.reuse}" for barrier in rows)


PACKAGE = DOCS.parent / "cute_fa4"
FLOORS = DOCS.parent / "tests" / "house" / "test_floors.py"


def floors() -> list[str]:
    """Rooms of the package from the top floor down, read from tests/house/test_floors.py."""
    for node in ast.parse(FLOORS.read_text()).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == "FLOORS":
            rooms = ast.literal_eval(node.value).split()
            return [room for room in rooms if room != "cute_fa4.sm100"]  # it heads its folders
    raise ValueError(f"{FLOORS}: no FLOORS")


def house() -> list[str]:
    """Every folder, and the files of the package and of sm100/, top floor first; sm100/ precedes its contents."""
    rooms = floors()
    first = next(number for number, room in enumerate(rooms) if room.startswith("cute_fa4.sm100."))

    def place(name: str) -> tuple:
        parts = ["cute_fa4", *name.removesuffix(".py").strip("/").split("/")]
        names = (".".join(parts[:n]) for n in range(len(parts), 1, -1))
        return next((rooms.index(room) for room in names if room in rooms), first - 0.5), name

    folders = [f"{path.parent.relative_to(PACKAGE)}/" for path in PACKAGE.rglob("*/__init__.py")]
    files = [*PACKAGE.glob("*.py"), *PACKAGE.glob("sm100/*.py")]
    names = [str(path.relative_to(PACKAGE)) for path in files if path.name != "__init__.py"]
    return sorted(folders + names, key=place)


def first_sentence(name: str) -> str:
    """First sentence of the docstring of a file, or of a folder's __init__.py. Raises ValueError without one."""
    path = PACKAGE / name / "__init__.py" if name.endswith("/") else PACKAGE / name
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    if not docstring:
        raise ValueError(f"{path}: no docstring; its first sentence describes the file or folder")
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", paragraph)[0].removesuffix(".").removesuffix(":")


def tree() -> str:
    """A table of every folder, and of the files of the package and of sm100/, with one sentence each."""
    lines = ["| in `cute_fa4/` | |", "|---|---|"]
    for name in house():
        shown = f"**`{name}`**" if name.endswith("/") else f"`{name}`"
        sentence = first_sentence(name).replace("|", "\\|")
        lines.append(f"| {shown} | {sentence} |")
    return "\n".join(lines)


def with_tree(page: str) -> str:
    """A page with the tree between its marks. Raises ValueError without the marks."""
    return between_marks(page, "tree", tree())


def between_marks(page: str, name: str, text: str) -> str:
    """A page with text between the marks of a name. Raises ValueError without the marks."""
    pattern = re.compile(rf"(<!-- {name}: [^\n]*-->\n).*?(<!-- /{name} -->)", re.DOTALL)
    if not pattern.search(page):
        raise ValueError(f"no marks <!-- {name}: ... --> and <!-- /{name} -->")
    return pattern.sub(lambda found: f"{found[1]}{text}\n{found[2]}", page)


def verification(page: str) -> str:
    """docs/verification.md with the summaries of its data files."""
    runs = json.loads((DOCS / "data" / "hopper.json").read_text())
    page = between_marks(page, "hopper", report.summary(runs))
    return between_marks(page, "mutations", table.summary(json.loads(table.DATA.read_text())))


def choices_table() -> str:
    """The choices of the tuning table, with the facts that rows may ask and the evidence of the package's rows."""
    lines = ["| choice | decides | facts | rows |", "|---|---|---|---|"]
    for name, choice in choices.CHOICES.items():
        evidence = Counter(row.about["evidence"] for row in tuning.shipped().rows[name])
        rows = ", ".join(f"{count} {word}" for word, count in sorted(evidence.items()))
        lines.append(f"| `{name}` | {choice.about} | {', '.join(choice.facts) or '-'} | {rows} |")
    return "\n".join(lines)


def margins_table() -> str:
    """The rows of every choice with candidates: how far the best is before the simplest, and what that decided."""
    lines = [
        "| choice | for | default | simplest | margin | error | decided by |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, choice in choices.CHOICES.items():
        for row in tuning.shipped().rows[name] if choice.candidates else ():
            facts = ", ".join(f"{fact} {value}" for fact, value in row.facts.items()) or "all else"
            default = (
                pays.default_of(row.value, row.facts.get("arch", ""))
                if name == "pairs"
                else row.value
            )
            margin, error = row.about["margin"], row.about["error"]
            who = "the simplest" if default == choice.simplest else "the margin"
            cells = [
                f"`{name}`",
                facts,
                *(f"`{choices.value_text(v)}`" for v in (default, choice.simplest)),
            ]
            cells += [gains.change(margin), f"{error:.1%}", who]
            lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "The error of a comparison of", ""]
    lines += [f"- {what}: {error:.1%}." for error, what in stated_error.DIFFERENCES.items()]
    return "\n".join(lines)


def performance_pages() -> dict[Path, str]:
    """Pages with tables of the model: those of records, then what is computed from these tables."""
    found = recorded.pages({path: path.read_text() for path in (*pages.PAGES, *pages.OTHERS)})
    text = "\n".join(found[path] for path in pages.PAGES)
    constants, source = fitted_b200(), recording.Recorded()
    of_peers = peers.tables(text, recorded.recorded, source)
    for name in ("peers", "peers_decode", "peers_energy"):
        of_peers[name] = recorded.kept(of_peers[name], pages.printed(text, name))
    return pages.filled(
        found,
        {
            **power.tables(text),
            **of_peers,
            "hopper_energy": hopper_energy.table(),
            "left_out": bounds.left_out(constants),
            "fixed_parts": bounds.fixed(constants),
            "choices": choices_table(),
            "margins": margins_table(),
            "others": stated_error.table(),
        },
    )


def documents() -> dict[Path, str]:
    generated = "<!-- Written by docs/generate.py; edit the code it prints. -->\n\n"
    performance = performance_pages()
    plots_of = plots.pictures("\n".join(performance[path] for path in pages.PAGES))
    return {
        **performance,
        DOCS / "barriers.md": generated + barriers_document(),
        DOCS / "layouts.md": generated + pictures.document(),
        **{DOCS / "pictures" / name: svg for name, svg in plots_of.items()},
        DOCS / "architecture.md": with_tree((DOCS / "architecture.md").read_text()),
        DOCS / "emulator_coverage.md": between_marks(
            (DOCS / "emulator_coverage.md").read_text(), "spellings", spellings.table()
        ),
        DOCS / "conformance.md": between_marks(
            (DOCS / "conformance.md").read_text(), "targets", targets.table(spellings.known())
        ),
        DOCS / "verification.md": verification((DOCS / "verification.md").read_text()),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, report differences")
    arguments = parser.parse_args()
    stale = []
    for path, text in documents().items():
        if not path.exists() or path.read_text() != text:
            stale.append(path)
            if not arguments.check:
                path.write_text(text)
    for path in stale:
        print(f"{path.relative_to(DOCS.parent)} " + ("is stale" if arguments.check else "written"))
    return 1 if arguments.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
