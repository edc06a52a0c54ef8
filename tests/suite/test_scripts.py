"""A forked script is what `python COMMAND` is: arguments, input, directory, environment, exit, the text of errors."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.suite import scripts

ROOT = Path(__file__).resolve().parents[2]

SAYS = """
import os, sys
print(sys.argv, __name__, os.getcwd(), os.environ.get("WORD"), sys.stdin.read(), sys.path[0])
print("known:", "torch" in sys.modules, any(name.partition(".")[0] == "cute_fa4" for name in sys.modules))
sys.exit(int(sys.argv[1]))
"""


def both(*command, cwd, **options):
    """The same command forked, and in a new process."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "WORD": "of the test"}
    text = options.pop("stdin", "")
    fresh = subprocess.run(
        [sys.executable, *command], cwd=cwd, env=env, input=text, capture_output=True, text=True
    )
    return scripts.run(*command, cwd=cwd, env=env, stdin=text, **options), fresh


def test_a_script_and_code_see_what_a_fresh_process_sees(tmp_path):
    path = tmp_path / "says.py"
    path.write_text(SAYS)
    for command in ([str(path), "0", "x"], ["-c", SAYS, "3"]):
        forked, fresh = both(*command, cwd=tmp_path, stdin="input")
        assert forked.returncode == fresh.returncode == int(command[-1] if "-c" in command else 0)
        assert forked.stdout.splitlines()[0] == fresh.stdout.splitlines()[0]
        assert forked.stdout.endswith("known: True False\n"), "nothing of the package is there"


def test_an_uncaught_error_is_printed_and_told_from_success(tmp_path):
    forked, fresh = both("-c", "x = 1\nx / 0", cwd=tmp_path)
    assert forked.returncode == fresh.returncode == 1
    assert forked.stderr.splitlines()[-1] == fresh.stderr.splitlines()[-1]
    assert 'File "<string>", line 2' in forked.stderr


def test_a_module_runs_and_a_filter_holds(tmp_path):
    (tmp_path / "module.py").write_text(
        "import sys, warnings\nwarnings.warn('w')\nprint(sys.argv[1:])"
    )
    forked, fresh = both("-W", "ignore::UserWarning", "-m", "module", "a", cwd=tmp_path)
    assert forked.stdout == fresh.stdout == "['a']\n" and forked.stderr == fresh.stderr == ""


def test_a_script_that_does_not_end_is_killed_with_what_it_started(tmp_path):
    with pytest.raises(subprocess.TimeoutExpired):
        code = "import subprocess; subprocess.run(['sleep', '100'])"
        scripts.run("-c", code, cwd=tmp_path, env=os.environ, timeout=0.5)
    assert scripts.run("-c", "print(1)", cwd=tmp_path, env=os.environ).stdout == "1\n"


def test_scripts_are_measured_with_the_process_that_runs_them(tmp_path):
    before = scripts.cpu_seconds
    scripts.run("-c", "for i in range(3_000_000): pass", cwd=tmp_path, env=os.environ)
    assert scripts.cpu_seconds > before
