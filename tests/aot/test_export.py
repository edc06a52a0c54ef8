"""What export writes: complete, described, hashed, and portable to every x86-64-v2 processor."""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess

import pytest

from cute_fa4 import aot
from cute_fa4.aot import build, exporter, loader, manifest
from cute_fa4.compiler import toolkit
from cute_fa4.sm100.choose.choose_config import choose_config
from cute_fa4.sm100.choose.config import FA4Config

from .conftest import APPEND, EXPORTED, PLAIN, RICH

ROLES = {"object", "library", "c_library", "c_header", "cubin", "ptx"}


def kernels(directory):
    content = json.loads((directory / "manifest.json").read_text())
    return {kernel["name"]: kernel for kernel in content["kernels"]}


def test_manifest_names_every_file_with_its_hash_and_size(exported):
    content = json.loads((exported / "manifest.json").read_text())
    described = {"manifest.json"}
    records = [*content["support_files"]]
    for kernel in content["kernels"]:
        assert set(kernel["files"]) == ROLES
        records += kernel["files"].values()
    for record in records:
        data = (exported / record["path"]).read_bytes()
        assert len(data) == record["bytes"]
        assert hashlib.sha256(data).hexdigest() == record["sha256"]
        described.add(record["path"])
    assert described == {path.name for path in exported.iterdir()}
    assert content["versions"] == manifest.versions()
    assert content["versions"]["toolkit"] in toolkit.FLAVOURS
    assert {kernel["ptxas"] for kernel in content["kernels"]} == {toolkit.ptxas()}
    assert set(kernels(exported)) == {config.name for config in EXPORTED}


def test_cubin_and_ptx_are_for_the_architecture_and_the_cubin_is_in_the_object(exported):
    for config in EXPORTED:
        kernel = kernels(exported)[config.name]
        cubin = (exported / kernel["files"]["cubin"]["path"]).read_bytes()
        ptx = (exported / kernel["files"]["ptx"]["path"]).read_text()
        assert re.search(r"^\.target sm_100a$", ptx, re.M)
        assert f".entry {kernel['entry']}(" in ptx
        assert cubin in (exported / kernel["files"]["object"]["path"]).read_bytes()
        assert kernel["entry"].encode() in cubin


def mnemonics(path):
    text = subprocess.run(
        ["objdump", "-d", str(path)], check=True, capture_output=True, text=True
    ).stdout
    return re.findall(r"^ +[0-9a-f]+:\t(?:[0-9a-f]{2} )+ *\t(\S+)", text, re.M), text


def test_host_code_has_no_instruction_beyond_x86_64_v2(exported):
    # AVX, AVX2 and AVX-512 instructions are the ones whose names begin with v; ymm and zmm are their registers.
    checked = 0
    for path in sorted(exported.iterdir()):
        if path.suffix in (".o", ".so"):
            names, text = mnemonics(path)
            assert len(names) > 300, path  # the disassembly was understood
            assert {n for n in names if n.startswith(("v", "{evex}"))} <= {"verr", "verw"}, path
            assert not re.search(r"%[yz]mm|%k[0-7]\b", text), path
            checked += 1
    assert checked == 9  # an object and two libraries of each


def test_the_disassembly_would_show_wider_instructions():
    # The same host function for x86-64-v3 has AVX: the test above can fail.
    built = build.build(APPEND, APPEND.name, host_target="x86-64-v3")
    assert built.host_object != build.build(APPEND, APPEND.name).host_object


def test_parameters_are_those_of_the_compiled_function(exported):
    parameters = {p["name"]: p for p in kernels(exported)[RICH.name]["parameters"]}
    assert list(parameters)[:6] == ["mQ", "mK", "mV", "mO", "mLSE", "softmax_scale"]
    assert parameters["mQ"] == {
        "name": "mQ", "kind": "tensor", "dtype": "fp16", "shape": ["total_q", "heads_q", 64],
        "contiguous": True, "stride_multiple": 8, "alignment": 16,
    }  # fmt: skip
    assert parameters["cu_seqlens_k"] == {"name": "cu_seqlens_k", "kind": "none"}
    assert parameters["mask_sizes"]["items"] == [{"kind": "i32"}]
    assert [item["dtype"] for item in parameters["aux"]["items"]] == ["f32"]


def test_exporting_again_adds_to_what_is_there(exported, tmp_path):
    directory = shutil.copytree(exported, tmp_path / "copy")
    more = choose_config(qkv_dtype="bf16", head_dim=64)
    aot.export([more], directory)
    assert set(kernels(directory)) == {config.name for config in (*EXPORTED, more)}


def right(directory):
    """The kernels of the list, whose files are all as it says."""
    listed = manifest.read_manifest(directory)["kernels"]
    return {loader.verified_config(directory, kernel) for kernel in listed}


def exported_without_a_compiler(exported, monkeypatch, more: bytes = b""):
    """From here on an export copies the files of `exported`; more: another compiler's bytes at the end of each."""

    def copied(config, as_data, out, host_target):
        record = kernels(exported)[config.name]
        for file in record["files"].values():
            (out / file["path"]).write_bytes((exported / file["path"]).read_bytes() + more)
        files = {x: manifest.file_record(out / f["path"]) for x, f in record["files"].items()}
        return record | {"files": files}

    monkeypatch.setattr(exporter, "export_one", copied)


def kill_in_an_export(directory, config):
    """SIGKILL, which cleans nothing up, where half of a kernel is written."""

    def killed(config, as_data, out, host_target):
        (out / f"{config.name}.so").write_bytes(b"half of it")
        os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        try:
            exporter.export_one = killed
            aot.export([config], directory)
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


def test_an_export_that_is_killed_leaves_a_directory_that_loads(exported, tmp_path):
    """Also while it writes a kernel anew, which stays unchanged."""
    directory = shutil.copytree(exported, tmp_path / "copy")
    kill_in_an_export(directory, PLAIN)
    assert right(directory) == set(EXPORTED)


def test_an_export_that_is_killed_in_the_first_kernel_says_so_and_can_be_repeated(
    exported, tmp_path, monkeypatch
):
    kill_in_an_export(tmp_path, PLAIN)
    with pytest.raises(aot.LoadError, match="a list of no kernels.*has completed none"):
        aot.load(tmp_path)
    exported_without_a_compiler(exported, monkeypatch)
    with pytest.warns(RuntimeWarning, match="a list of no kernels; the list is written anew"):
        aot.export([PLAIN], tmp_path)
    assert right(tmp_path) == {PLAIN}
    files = {file["path"] for file in kernels(tmp_path)[PLAIN.name]["files"].values()}
    assert {path.name for path in tmp_path.iterdir()} == files | {
        "manifest.json",
        exporter.KERNEL_HEADER,
    }


def test_an_export_that_is_killed_while_it_writes_the_only_kernel_anew_leaves_the_old_one(
    exported, tmp_path, monkeypatch
):
    exported_without_a_compiler(exported, monkeypatch)
    aot.export([PLAIN], tmp_path)
    kill_in_an_export(tmp_path, PLAIN)
    assert right(tmp_path) == {PLAIN}
    aot.export([APPEND], tmp_path)
    assert right(tmp_path) == {PLAIN, APPEND}


def test_the_list_is_right_whenever_a_file_is_replaced(exported, tmp_path, monkeypatch):
    directory = shutil.copytree(exported, tmp_path / "copy")
    seen, replace = [], os.replace

    def replaced(source, destination):
        seen.append(right(directory))
        replace(source, destination)

    monkeypatch.setattr(os, "replace", replaced)
    for more, unlisted in ((b"", set()), (b"\n", {PLAIN})):
        exported_without_a_compiler(exported, monkeypatch, more)
        aot.export([PLAIN], directory)
        assert len(seen) > len(ROLES) and seen[-2] == set(EXPORTED) - unlisted
        seen.clear()
    assert right(directory) == set(EXPORTED)


def test_a_damaged_list_does_not_prevent_a_new_export(exported, tmp_path, monkeypatch):
    directory = shutil.copytree(exported, tmp_path / "copy")
    (directory / "manifest.json").write_text("{")
    exported_without_a_compiler(exported, monkeypatch)
    with pytest.warns(RuntimeWarning, match="damaged, not JSON .*; the list is written anew"):
        aot.export([PLAIN], directory)
    assert right(directory) == {PLAIN}


def refuse_to_compile(monkeypatch):
    def compiled(*args):
        raise AssertionError("compiled")

    monkeypatch.setattr(build, "build", compiled)


@pytest.mark.parametrize(
    "configs, keywords, message",
    [
        ([PLAIN, FA4Config(qk_depth=100)], {}, "cannot run: qk_depth=100"),
        ([PLAIN, FA4Config(score_mod=lambda: 0)], {}, "score_mod"),
        ([], {}, "configs: none"),
        ([PLAIN], {"host_target": "pentium"}, "'pentium'; accepted: x86-64, x86-64-v2"),
        (
            [PLAIN],
            {"arch": "sm_90a"},
            "arch='sm_90a' has no tcgen05 kernel here: use one of sm_100a, sm_103a",
        ),
    ],
)
def test_what_cannot_be_exported_is_refused_before_anything_is_compiled(
    configs, keywords, message, tmp_path, monkeypatch
):
    refuse_to_compile(monkeypatch)
    with pytest.raises(aot.ExportError, match=message):
        aot.export(configs, tmp_path, **keywords)


def test_a_directory_of_other_versions_is_not_mixed(exported, tmp_path, monkeypatch):
    directory = shutil.copytree(exported, tmp_path / "copy")
    path = directory / "manifest.json"
    path.write_text(path.read_text().replace(manifest.source_fingerprint(), "0" * 32))
    refuse_to_compile(monkeypatch)
    with pytest.raises(aot.ExportError, match="kernels of other versions"):
        aot.export([PLAIN], directory)


CATALOGUES = {
    "[[model]]\nheads_q = 8": "head_dim",
    "[[model]]\nhead_dim = 64\nheads_q = 8\nheads_kv = 3": "heads_q: 8 with heads_kv 3",
    "[[model]]\nhead_dimension = 64": r"\['head_dimension'\]; accepted: head_dim",
    "[[config]]\nqkv_dtype = 'bf16'\nhead_dim = 50": "qk_depth=50",
    "[[models]]\nhead_dim = 64": r"\['models'\]; accepted",
    "": r"no \[\[model\]\]",
    "[[model": "end of an array",
}


@pytest.mark.parametrize("text", CATALOGUES, ids=lambda t: repr(t[:30]))
def test_a_wrong_catalogue_is_refused_with_the_place(text, tmp_path):
    path = tmp_path / "set.toml"
    path.write_text(text)
    with pytest.raises(aot.ExportError, match=f"set.toml.*{CATALOGUES[text]}"):
        aot.read_catalogue(path)


def test_a_catalogue_of_single_configurations(tmp_path):
    path = tmp_path / "set.toml"
    path.write_text("[[config]]\nqkv_dtype = 'bf16'\nhead_dim = 64\ncausal = true\n")
    found = aot.read_catalogue(path)
    assert [c.schedule.family for c in found] == ["mha2q", "mha1q"] and found[1] == PLAIN
