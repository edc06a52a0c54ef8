"""docs/serving.md: its code runs in order, and its table of masks has the constructors that exist."""

import re
import warnings
from pathlib import Path

from cute_fa4 import EmulatorWarning, masks

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "serving.md").read_text()


def test_the_blocks_run_in_order():
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.M | re.S)
    assert len(blocks) == 5
    names = {"__name__": "serving"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EmulatorWarning)
        for number, block in enumerate(blocks):
            exec(compile(block, f"docs/serving.md python block {number}", "exec"), names)


def test_the_table_has_every_mask():
    rows = re.findall(r"^\| `(\w+)\(.*?\)`(?:, `(\w+)\()?", PAGE, flags=re.M)
    named = {name for row in rows for name in row if name}
    assert named == set(masks.__all__) - {"BoundMask"}
