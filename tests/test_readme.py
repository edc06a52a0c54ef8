"""The README's promises: its commands are those of CI, its files exist. tests/docs runs its code."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from cute_fa4.sm100.choose.choose_config import ALL_DEPTHS

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
CI = (ROOT / ".ci" / "run").read_text()


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.M | re.S)


def test_the_first_screen_has_one_call_and_two_commands():
    first_screen = README[: README.index("## ")]
    assert first_screen.count("```python\n") == 1
    assert first_screen.count("```bash\n") == 2
    assert len(first_screen.splitlines()) <= 40


def test_ci_runs_the_readmes_test_command():
    create_environment, test_command = blocks("bash")[1].strip().split("activate && ")
    assert create_environment == "python3 -m venv .venv && . .venv/bin/"
    assert CI.rstrip().endswith("\n" + test_command)


def test_the_readmes_first_command_runs_an_example_that_exists():
    [script] = re.findall(r"python (examples/\S+\.py)", blocks("bash")[0])
    assert (ROOT / script).is_file()


def test_ci_is_an_executable_bash_script_that_the_workflow_calls():
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert "\nset -euo pipefail\n" in CI
    subprocess.run(["bash", "-n", str(ROOT / ".ci" / "run")], check=True)
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert "- run: .ci/run\n" in workflow


def named_files() -> list[str]:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    quoted = re.findall(r"`((?:cute_fa4|tests|docs|examples|benchmarks)/[\w./]*)`", README)
    return sorted({*links, *quoted})


@pytest.mark.parametrize("name", named_files())
def test_named_files_exist(name):
    assert (ROOT / name).exists()


def test_the_support_table_names_the_head_dims_of_the_configuration():
    [row] = re.findall(r"^\| head dim \| ([^|]+) \|", README, flags=re.M)
    of_q_k_and_v = "of q and k and, independently, of v and out"
    assert row == f"multiples of 8 from 8 to 256, and of 16 to 512, {of_q_k_and_v}"
    assert ALL_DEPTHS == (*range(8, 257, 8), *range(272, 513, 16))
