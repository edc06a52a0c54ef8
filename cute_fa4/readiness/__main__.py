"""One stage in this process: python -m cute_fa4.readiness STAGE DEVICE ANSWER. The runner starts it."""

import json
import sys
from pathlib import Path

from cute_fa4.readiness.command import STAGES
from cute_fa4.readiness.runner import answer_of
from cute_fa4.readiness.stage import Context


def main(name: str, device: str, answer: str) -> None:
    stage = next(stage for stage in STAGES if stage.name == name)
    Path(answer).write_text(json.dumps(answer_of(stage, Context(device)), default=str))


if __name__ == "__main__":
    main(*sys.argv[1:])
