"""Commands about exported kernels: what lies there, whether it is whole, how two differ, whether it computes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cute_fa4 import __main__ as command_line
from cute_fa4 import __version__, aot, masks
from cute_fa4.aot import installed, manifest
from cute_fa4.commands import trials
from cute_fa4.compiler import functions
from cute_fa4.sm100.choose.choose_config import choose_config, split_configs
from cute_fa4.sm100.indexer.config import IndexerConfig, TopKConfig
from cute_fa4.system import c_compiler, cache_directory, pipes

from .conftest import APPEND, EXPORTED, PLAIN, RICH, ROOT, python
from .test_load import WITHOUT_COMPILER


def run(capsys, *arguments, status=0) -> str:
    """The output of a command; status: its expected exit status."""
    assert command_line.main([*map(str, arguments)]) == status
    captured = capsys.readouterr()
    return captured.out + captured.err


def test_list_names_a_kernel_a_line(exported, capsys):
    assert run(capsys, "aot", "list", exported).split() == [config.name for config in EXPORTED]
    assert repr(PLAIN) in run(capsys, "aot", "list", "--long", exported)


def test_list_without_a_directory_and_without_a_wheel_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setattr(installed.metadata, "entry_points", lambda group: ())
    assert "no kernels are installed; accepted" in run(capsys, "aot", "list", status=1)


def test_verify_names_everything_that_is_wrong(exported, tmp_path, capsys):
    assert "3 kernels, as exported" in run(capsys, "aot", "verify", exported)
    directory = shutil.copytree(exported, tmp_path / "copy")
    (directory / f"{PLAIN.name}.ptx").write_text("")
    (directory / f"{RICH.name}.so").unlink()
    (directory / "core.1234").write_text("")
    said = run(capsys, "aot", "verify", directory, status=1)
    assert f"{PLAIN.name}.ptx: 0 bytes, the manifest says" in said
    assert f"{RICH.name}.so: named by the manifest and unreadable" in said
    assert "core.1234: not in the manifest" in said
    assert "3 kernels, 3 problems\n" in said


def test_diff_has_a_line_for_each_kernel_that_differs(exported, tmp_path, capsys):
    assert "3 kernels, all alike" in run(capsys, "aot", "diff", exported, exported)
    other = shutil.copytree(exported, tmp_path / "copy")
    path = other / manifest.MANIFEST
    content = json.loads(path.read_text())
    first, second, third = content["kernels"]
    content["versions"]["source"] = "0"
    first["files"]["ptx"]["sha256"] = "0" * 64
    path.write_text(json.dumps({**content, "kernels": [first, {**third, "name": "another"}]}))
    said = run(capsys, "aot", "diff", exported, other, status=1).splitlines()
    assert said[0].startswith("! source: ") and said[0].endswith(" and 0")
    expected = {f"! {PLAIN.name}: other ptx", f"< {RICH.name}", f"< {APPEND.name}", "> another"}
    assert set(said[1:]) == expected


def test_show_finds_a_kernel_by_a_part_of_its_name(exported, capsys, tmp_path):
    said = run(capsys, "aot", "show", RICH.name.rpartition("_")[2], exported)
    assert repr(RICH) in said and "softmax_scale" in said and f"{RICH.name}_c.so" in said
    path = tmp_path / "set.toml"
    path.write_text(said[said.index("[[config]]") : said.index("parameters of")])
    assert aot.read_catalogue(path) == [RICH]


@pytest.mark.parametrize("part, found", [("sm_100a", 3), ("nothing", 0)])
def test_show_wants_one_kernel(part, found, exported, capsys):
    said = run(capsys, "aot", "show", part, exported, status=1)
    assert f"'{part}' is in the names of {found} kernels" in said


def test_the_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit, match="0"):
        command_line.main(["--version"])
    assert capsys.readouterr().out == f"cute_fa4 {__version__}\n"


@pytest.mark.parametrize(
    "arguments, name",
    [
        (["--catalogue", "serving"], "serving"),
        (["--head-dim", "64"], "kernels"),
        (["--head-dim", "64", "--name", "mine"], "mine"),
    ],
)
def test_export_writes_a_wheel_without_keeping_the_files(
    arguments, name, exported, tmp_path, monkeypatch, capsys
):
    def export(configs, out, **options):  # compiles nothing
        shutil.copytree(exported, out, dirs_exist_ok=True)

    monkeypatch.setattr(aot, "export", export, raising=False)
    command = "export" if "--catalogue" in arguments else "export-kernel"
    path = Path(run(capsys, command, *arguments, "--wheel", tmp_path / "wheels").strip())
    assert [path] == list((tmp_path / "wheels").iterdir())
    assert path.name.startswith(f"cute_fa4_kernels_{name}-")


def test_export_says_that_a_directory_has_another_export(exported, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(aot, "export", lambda configs, out, **options: out, raising=False)
    again = ["export-kernel", "--head-dim", "64", "--causal", "--family", "mha1q", "--out"]
    said = run(capsys, *again, shutil.copytree(exported, tmp_path / "copy"))
    assert "has 3 kernels of an earlier export, which stay, 1 of them written anew" in said
    assert "earlier" not in run(capsys, *again, tmp_path / "new")


def test_export_needs_a_place_to_write_to(capsys):
    assert "--out: not given; accepted" in run(
        capsys, "export-kernel", "--head-dim", "64", status=1
    )


# --- check --load


@pytest.fixture
def nothing_loaded(monkeypatch):
    monkeypatch.setattr(functions, "_functions", {})
    monkeypatch.setattr(functions, "_registered", {})


def test_every_loaded_kernel_is_tried(exported, nothing_loaded, capsys, monkeypatch):
    monkeypatch.setenv("CUTE_FA4_JIT", "allow")
    said = run(capsys, "check", "--load", exported, "--device", "cpu")
    assert all(config.name in said for config in EXPORTED)
    assert "3 of 3 kernels agree with float64 on cpu, 0 not tried" in said
    assert os.environ["CUTE_FA4_JIT"] == "allow"


# Output of each of the three that kernels with another mask, without a sink, or without an append would not have.
@pytest.mark.parametrize("config", EXPORTED, ids=lambda c: c.name[:40])
def test_a_kernel_that_writes_zeros_is_wrong(config, nothing_loaded, monkeypatch):
    def zeros(*tensors):
        for tensor in tensors[3:5]:
            if isinstance(tensor, torch.Tensor) and config is not APPEND:
                tensor.zero_()

    functions.register(config, "emulator", lambda: zeros)
    verdict = trials.verdict(config, "cpu", "emulator")
    assert not verdict.not_tried and not verdict.good and "WRONG" in str(verdict)


def test_a_kernel_that_raises_does_not_hide_the_others(nothing_loaded):
    def raises(*tensors):
        raise RuntimeError("no such launch")

    functions.register(PLAIN, "emulator", lambda: raises)
    assert str(trials.verdict(PLAIN, "cpu", "emulator")).endswith("RuntimeError: no such launch")


def test_a_kernel_that_no_call_asks_for_is_not_counted_as_tried(nothing_loaded, monkeypatch):
    monkeypatch.setenv("CUTE_FA4_CACHE", "off")  # where other tests may have left PLAIN
    config = PLAIN.with_(rescale_log2=4.0)
    functions.register(config, "emulator", lambda: None)
    verdict = trials.verdict(config, "cpu", "emulator")
    assert verdict.not_tried == f"its call asks for {PLAIN.name}"
    assert command_line.check_loaded([config], "cpu") == 1  # nothing was tried


def test_a_split_call_is_tried_with_the_kernel_that_merges_its_parts(nothing_loaded, tmp_path):
    both = split_configs(PLAIN, write_lse=True)  # a call without the log-sum-exp has no kernel here
    aot.load(aot.export(both, tmp_path))
    verdicts = [trials.verdict(config, "cpu", "emulator") for config in both]
    assert verdicts[0].good and not verdicts[0].not_tried
    assert "called with the kernel of the parts" in verdicts[1].not_tried
    assert functions.existing(both[1], "emulator") is not None


INDEXERS = [
    IndexerConfig(32, 4),
    IndexerConfig(64, 1, page_size=64, ends="lengths", clean=False),
    IndexerConfig(24, 2, page_size=16),
    TopKConfig(),
    TopKConfig(ctas=2),
]


def written(given: tuple) -> torch.Tensor:
    """Logits, the last but one of eight, or indices, the last of four."""
    return given[7] if len(given) > 7 else given[3]


@pytest.mark.parametrize("config", INDEXERS, ids=lambda c: c.name)
def test_an_indexer_is_tried_and_one_that_writes_zeros_is_wrong(nothing_loaded, tmp_path, config):
    aot.load(aot.export([config], tmp_path))
    verdict = trials.verdict(config, "cpu", "emulator")
    assert verdict.good and not verdict.not_tried, str(verdict)
    functions.clear()
    functions.register(config, "emulator", lambda: lambda *given: written(given).zero_())
    assert "WRONG" in str(trials.verdict(config, "cpu", "emulator"))


EIGHT_BITS = {
    "q, k of tokens, v of heads": dict(
        qkv_dtype="e4m3", descales="QKv", kv_layout="paged", page_size=16, seqused_k=True, family="mha1q",
        q_layout="packed", causal=True,
    ),
    "16 bits over a cache": dict(
        qkv_dtype="bf16", kv_dtype="e4m3", descales="kV", group=4, pack_gqa=True, rows=32, write_lse=True,
        seqused_k=True, seqused_q=True, cache_batch_idx=True,
    ),
    "blocks of q and k": dict(
        qkv_dtype="e4m3", descales="xyv", group=4, kv_layout="paged", page_size=16, seqused_k=True, q_layout="packed",
        causal=True,
    ),
}  # fmt: skip


@pytest.mark.sweep
@pytest.mark.parametrize("name", EIGHT_BITS)
def test_kernels_of_8_bits_are_tried_with_their_scales(nothing_loaded, tmp_path, name):
    config = choose_config(head_dim=64, **EIGHT_BITS[name])
    aot.load(aot.export([config], tmp_path))
    verdict = trials.verdict(config, "cpu", "emulator")
    assert verdict.good and not verdict.not_tried, str(verdict)


def test_the_definition_is_that_of_the_other_oracle():
    """The two agree where both apply: full, causal and a window of both sides, a ragged paged cache."""
    from cute_fa4.reference import attention_float64

    kinds = {
        masks.Full(): {},
        masks.Causal(): {"causal": True},
        masks.Window(True, True): {"window_size": (trials.WINDOW,) * 2},
    }
    for mask, said in kinds.items():
        problem = trials._Problem(RICH.with_(mask=mask, sink=False, score_mod=None, aux=()), "cpu")
        for b in range(2):
            out, lse = problem.exact(b)
            q, k, v = (x[b][None] for x in (problem.q, problem.k, problem.v))
            exact, exact_lse = attention_float64(q, k, v, **said)
            assert (out - exact[0]).abs().max() < 1e-12 and (lse - exact_lse[0]).abs().max() < 1e-12


# --- without the compiler


def test_commands_without_a_compiler_say_what_to_install(exported):
    code = f"""{WITHOUT_COMPILER}
import torch
from cute_fa4.__main__ import main
from cute_fa4 import JitError, aot, flash_attn_func
directory = sys.argv[1]
assert main(["check", "--load", directory, "--kernel", {PLAIN.name!r}, "--device", "cpu"]) == 0
assert main(["export-kernel", "--head-dim", "64", "--out", "/nowhere"]) == 1
assert main(["check", "--device", "cpu"]) == 1
try:
    flash_attn_func(*torch.zeros(3, 1, 8, 2, 64).bfloat16())
except JitError as error:
    print(error)
"""
    done = python(code, exported)
    for said in (done.stderr, done.stdout):
        assert "pip install 'nvidia-cutlass-dsl[cu13]>=4.8,<5' 'cuda-python>=12.8'" in said
    assert "Traceback" not in done.stderr
    assert f"nearest  {PLAIN.name}" in done.stdout


# --- pipes and paths


@pytest.mark.parametrize(
    "command",
    [
        ["-m", "cute_fa4", "export", "--catalogue", "serving", "--list"],
        [str(ROOT / "examples" / "02_read_the_schedule.py")],
    ],
    ids=lambda command: Path(command[-1]).name,
)
def test_a_reader_that_goes_away_is_no_error(command):
    process = subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
    )
    process.stdout.close()  # before the first line: each write fails
    assert process.stderr.read() == b""
    assert process.wait() == pipes.CLOSED
    process.stderr.close()


def test_a_tilde_is_the_home_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CUTE_FA4_CACHE_DIR", "~/cache")
    assert cache_directory.cache_root() == tmp_path / "cache"
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", "~/cc")
    assert c_compiler.find_compiler() == str(compiler)
