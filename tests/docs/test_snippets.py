"""What README.md and docs/ show is what happens: blocks of Python run, commands run or at least parse.

A page is one process: its blocks run in order and share their names. A line of bash runs, too, unless NOT_RUN says why
not; then its options are parsed, as are those of commands in the text. A block below <!-- not executed: reason --> is
left out, and reported as skipped.
"""

import argparse
import importlib.util
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, bash_lines, blocks, shown_commands, simple_commands
from tests.suite import scripts, turns

# Beginnings of commands that no test runs here, and why.
NOT_RUN = {
    "python3 -m venv": "makes an environment: .ci/run does it",
    ". .venv/bin/activate": "belongs to the environment",
    "pip install": "downloads: .ci/run does it",
    "pytest": "these are the tests",
    "python examples/01_one_call.py": "tests/test_examples.py runs it, on less text",
    "python -m cute_fa4 tune": "needs a Blackwell GPU; tests/bench runs it with a timer of the test",
    "python -m cute_fa4 bench": "needs a Blackwell GPU; tests/bench runs it with a machine of its own",
    "python -m cute_fa4 hopper": "needs nvcc, then a Hopper GPU; tests/hopper has what does not",
    "python -m cute_fa4 export --catalogue": "compiles dozens of kernels for minutes",
    "python -m cute_fa4 export --hf-config": "the same; tests/aot/test_hf_config.py lists them",
    "cmake": "tests/aot/test_deployment.py builds the examples and runs them",
    "build/attention_": "tests/aot/test_deployment.py builds the examples and runs them",
}
# Programs whose options are not parsed here.
OTHER_PROGRAMS = {
    "pip", "pytest", "mkdocs", "venv", ".", "cd", "export", "cmake", "git", "build/attention_c", "build/attention_cpp",
}  # fmt: skip

# Conditions after the last block of a page.
AFTER = {
    "README.md": "assert out.shape == q.shape and lse.shape == (1, 4, 300)",
    "docs/deployment.md": "assert compiled == 0  # warmup found everything loaded",
}
# Output of a page.
PRINTS = {"docs/deployment.md": ["_lse_sm_100a", "export it"]}  # the JitError names what is missing
# What its blocks of text show of the reports; paths are those of the folder it runs in.
PRINTS["docs/debugging.md"] = [
    line.rstrip()
    for block in blocks("docs/debugging.md")
    if block.language == "text"
    for line in block.code.splitlines()
    if line.strip(". ")
]

ALL_BLOCKS = [block for page in PAGES for block in blocks(page)]
LANGUAGES = {"", "bash", "c", "cmake", "cpp", "json", "python", "text", "toml"}


def reason_not_to_run(command: list[str]) -> str | None:
    text = " ".join(command)
    return next((why for begin, why in NOT_RUN.items() if text.startswith(begin)), None)


def steps(page: str) -> list[dict]:
    """What run_page.py is to run."""
    found = []
    for block in blocks(page):
        if block.exempt is not None or block.language not in ("python", "bash"):
            continue
        where = {"page": str(ROOT / page), "line": block.line}
        if block.language == "python":
            found.append({"kind": "python", "code": block.code, **where})
            continue
        for line in bash_lines(block.code):
            if not any(reason_not_to_run(command) for command in simple_commands(line)):
                found.append({"kind": "bash", "code": line, **where})
    if page in AFTER:
        found.append({"kind": "python", "code": AFTER[page], "page": "AFTER", "line": 1})
    return found


def run_page(page: str, folder: Path) -> subprocess.CompletedProcess:
    """The steps of a page in a folder that looks like a checkout; what they write stays there."""
    for name in ("examples", "benchmarks", "docs"):
        (folder / name).symlink_to(ROOT / name)
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "CUTE_FA4_CACHE": "on",  # in the directory of the run, like every other test's
        "PATH": os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"],
    }
    runner = str(ROOT / "tests" / "docs" / "run_page.py")
    text = json.dumps(steps(page))
    options = ("-W", "ignore::UserWarning", runner)
    if page == FIRST:  # nothing is imported yet
        return subprocess.run(
            [sys.executable, *options],
            input=text,
            env=env,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=600,
        )
    return scripts.run(*options, stdin=text, env=env, cwd=folder, timeout=600)


# The page that a newcomer runs first is run in every commit; the others compile kernels of their own.
FIRST = "README.md"
OTHERS = [page for page in PAGES if steps(page) and page != FIRST]


@pytest.mark.parametrize("page", [FIRST, *turns.by_turns(OTHERS)])
def test_a_page_runs_from_top_to_bottom(page, tmp_path):
    done = run_page(page, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    for text in PRINTS.get(page, []):
        assert text in done.stdout


def test_blocks_that_are_not_executed_say_why():
    exempt = [block for block in ALL_BLOCKS if block.exempt is not None]
    for block in exempt:
        assert len(block.exempt.split()) >= 2, f"{block}: the mark gives no reason"
    if exempt:  # so that the end of every run lists them
        pytest.skip("; ".join(f"{block} is not executed: {block.exempt}" for block in exempt))


PAGE = """# A page

<!-- not executed: needs two GPUs -->

```python
1 / 0
```

```python
x = 1
x / 0
```
"""


def test_a_mark_exempts_the_block_below_it_and_no_other(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    first, second = blocks(str(page))
    assert (first.exempt, first.line) == ("needs two GPUs", 6)
    assert (second.exempt, second.line) == (None, 10)
    assert [step["line"] for step in steps(str(page))] == [10]


def test_an_error_shows_the_line_of_the_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    done = run_page(str(page), tmp_path)
    assert done.returncode and f'"{page}", line 11' in done.stderr and "ZeroDivision" in done.stderr


def test_an_open_fence_is_refused(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 1\n")
    with pytest.raises(ValueError, match="page.md:1: a fence that is not closed"):
        blocks(str(page))


@pytest.mark.parametrize("page", PAGES)
def test_every_fence_is_a_block_of_a_known_language(page):
    fences = re.findall(r"^\s*(?:```|~~~)", (ROOT / page).read_text(), flags=re.MULTILINE)
    assert len(fences) == 2 * len(blocks(page))
    for block in blocks(page):
        assert block.language in LANGUAGES, block
        # Otherwise a page could show code that is never run.
        assert block.language or not re.match(r"(import|from) \w+|>>>", block.code), block


@pytest.mark.parametrize("begin", NOT_RUN)
def test_every_exception_is_one_that_a_page_needs(begin):
    assert any(" ".join(command).startswith(begin) for command in COMMANDS)


# --- commands parse


def commands() -> list[list[str]]:
    found = {}
    for page in PAGES:
        lines = shown_commands(page)
        for block in blocks(page):
            if block.language == "bash":
                lines += bash_lines(block.code)
        for line in lines:
            for command in simple_commands(line):
                found[tuple(command)] = None
    return [list(command) for command in found]


COMMANDS = commands()


# cute_fa4.__main__ is there already when the second command runs it: its parser is made anew.
@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_is_known_and_its_options_are_accepted(command, monkeypatch):
    program, *arguments = command
    if program not in ("python", "python3"):
        assert program in OTHER_PROGRAMS
        return
    if arguments[0] == "-m":
        name, *options = arguments[1:]
        if name in OTHER_PROGRAMS:
            return
        run = lambda: runpy.run_module(name, run_name="__main__", alter_sys=True)
        source = source_of_module(name)
    else:
        name, *options = arguments
        run = lambda: runpy.run_path(str(ROOT / name), run_name="__main__")
        source = (ROOT / name).read_text()
    if "ArgumentParser" not in source:
        assert not options
        return
    assert_parses(run, [name, *options], monkeypatch)


def source_of_module(name: str) -> str:
    """Of what `python -m name` runs."""
    spec = importlib.util.find_spec(name)
    if spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    return Path(spec.origin).read_text()


class Parsed(BaseException):
    """The options were accepted: nothing after that is of interest here."""


def assert_parses(run, argv: list[str], monkeypatch) -> None:
    """run() gets as far as a parser that accepts argv."""
    parse = argparse.ArgumentParser.parse_args

    def parse_only(self, *args, **kwargs):
        parse(self, *args, **kwargs)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_only)
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(Parsed):
        run()


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize("option", ["--no-such-option", "--help"])
def test_the_check_of_options_notices_a_wrong_one(option, monkeypatch, capsys):
    run = lambda: runpy.run_module("cute_fa4", run_name="__main__", alter_sys=True)
    with pytest.raises(SystemExit):
        assert_parses(run, ["cute_fa4", "info", option], monkeypatch)
