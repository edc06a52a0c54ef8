"""Write the documents that are printed from the code: docs/barriers.md and docs/layouts.md.

python docs/generate.py           write them
python docs/generate.py --check   exit 1 and name those that the code no longer prints
"""

import argparse
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

from cute_fa4.layouts import pictures  # noqa: E402
from cute_fa4.sm100.choose_config import choose_config  # noqa: E402
from cute_fa4.sm100.config import FA4Config  # noqa: E402
from cute_fa4.sm100.sync.barriers import BarrierTable  # noqa: E402


def barriers_document() -> str:
    config = FA4Config()
    beside = choose_config(qkv_dtype="bf16", head_dim=64).barriers  # has every row
    added = tuple(row for row in beside.rows if row.name not in config.barriers)
    rows = "\n".join(
        f"| {index * 8} | `{name}` | {barrier.count} | {' + '.join(map(str, barrier.raised_by))} "
        f"| {barrier.awaited_by} |"
        for index, name, barrier in config.barriers.instances()
    )
    reuse = "\n".join(f"- `{barrier.name}`: {barrier.reuse}" for barrier in beside.rows)
    return f"""# Barriers

Every mbarrier of the forward kernel, printed from `cute_fa4/sm100/mha2q/barriers.py` for the default configuration
(bf16, head dim {config.qk_depth}, {config.barriers.kv_slots} ring slots, {config.barriers.total} mbarriers).

## By kind

```
{config.barriers.text()}
```

The order in which P has columns of its own (head dim 64, `p_beside_s.py`) adds, behind `p_last`:

```
{BarrierTable(added, beside.numbers).text()}
```

A phase must be seen before the next one completes. What guarantees it:

{reuse}

## In memory

The count is what `mbarrier.init` is given: the number of arrivals that complete a phase. Byte offsets are from the
first mbarrier.

| byte | mbarrier | count | raised by | awaited by |
|---:|---|---:|---|---|
{rows}
"""


def documents() -> dict[Path, str]:
    generated = "<!-- Written by docs/generate.py; edit the code it prints. -->\n\n"
    return {
        DOCS / "barriers.md": generated + barriers_document(),
        DOCS / "layouts.md": generated + pictures.document(),
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
