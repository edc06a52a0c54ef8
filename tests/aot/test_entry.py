"""Entries of a catalogue: what a configuration needs said is what TOML and flags read back, and JitError prints it."""

import warnings

import pytest

from cute_fa4 import __main__ as command_line
from cute_fa4 import configs_for_model, masks, score_mods
from cute_fa4.aot import ExportError, entry, entry_fields, missing, read_catalogue
from cute_fa4.aot.config_data import ConfigDataError
from cute_fa4.aot.exporter import for_arch
from cute_fa4.commands.export import configs_of
from cute_fa4.compiler import functions
from cute_fa4.compiler.policy import JitError, JitWarning
from cute_fa4.sm100.append.config import AppendConfig
from cute_fa4.sm100.backward.config import BackwardConfig
from cute_fa4.sm100.blueprint.score_mods import ScoreMod
from cute_fa4.sm100.blueprint.warp_roles import WarpRoles
from cute_fa4.sm100.choose.choose_config import choose_config, split_configs
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.combine.config import CombineConfig
from cute_fa4.sm100.indexer.config import IndexerConfig, TopKConfig
from cute_fa4.sm100.work.lists.config import BlockListsConfig
from tests import tuned

from .conftest import EXPORTED, PLAIN, RICH, ROOT

# Between them, every field of an entry that runs has another value than the default.
VARIED = [
    *EXPORTED,
    choose_config(
        qkv_dtype="fp16", head_dim=128, group=8, q_layout="packed", kv_layout="paged", page_size=64,
        seqused_q=True, seqused_k=True, padded_keys=True, fold_pages=False,
        cache_batch_idx=True, cache_leftpad=True,
        page_heads_first=True, pack_gqa=True, sink=True, sink_dtype="bf16", write_lse=True, arch="sm_103a",
        mask=masks.Either(masks.Window(True, False), masks.Both(masks.Causal(), masks.Chunked())),
        mask_mod=score_mods.relative_logits(7), aux=(("bf16", 3), ("i32", 1)),
    ),
    choose_config(
        qkv_dtype="bf16", head_dim=64, causal=True, order="p_over_s", rescale_log2=4.5,
        exp2_emulated=3, claims=False, warps=WarpRoles(softmax_registers=184),
    ),
    choose_config(qkv_dtype="bf16", head_dim=128, split_keys=True, o_dtype="f32", write_lse=True),
    choose_config(
        qkv_dtype="bf16", head_dim=192, head_dim_v=128, q_layout="packed", kv_layout="packed", rope_depth=64,
        rope_page_size=64, family="mhapair",
    ),
    *split_configs(choose_config(qkv_dtype="fp16", head_dim=64, causal=True), write_lse=False, shared=True),
    AppendConfig("fp16", 128, 64, packed=True, cache_batch_idx=True, arch="sm_103a"),
    AppendConfig("e2m1", 128, 128, new_dtype="fp16", descales="kv", v_block_scale_layout="interleaved4"),
    AppendConfig("e2m1", 64, 64, new_dtype="bf16", four_over_six=True),
    AppendConfig("mxe4m3", 64, 128, new_dtype="bf16", descales="k"),
    choose_config(
        qkv_dtype="fp16", kv_dtype="e2m1", v_block_scale_layout="interleaved4", head_dim=128, group=8, pack_gqa=True,
        family="mhawiden",
    ),
    choose_config(qkv_dtype="fp16", head_dim=80, group=8, pack_gqa=True, family="mha1q", rescale_log2=4.0),
    CombineConfig(
        "f32", 64, packed=True, seqused_q=True, write_lse=True, partial_dtype="fp16", arch="sm_103a"
    ),
    choose_config(qkv_dtype="fp16", head_dim=128, o_dtype="e4m3", descales="o"),
    CombineConfig("e4m3", 128),
    BackwardConfig("fp16", 64, 128, packed=True, used=True, mask=masks.Window(True, False), dlse=True, arch="sm_103a"),
    BackwardConfig("bf16", 64, 64, dlse=True, accumulate=True, listed=True),
    BackwardConfig(
        "bf16", 64, 64, mask=masks.Causal(), mask_mod=score_mods.relative_logits(7), aux=(("bf16", 3),),
        score_mod=score_mods.composed(score_mods.soft_cap(30.0), score_mods.alibi(8)),
    ),
    BlockListsConfig("order", arch="sm_103a"),
    BackwardConfig("bf16", 64, 64, score_mod=score_mods.additive_bias(), aux=(("f32", 4),), wanted=(0,)),
    BackwardConfig("bf16", 64, 64, exp2_emulated=8),
    *(BackwardConfig("bf16", depth, depth, pairs=pairs) for depth in (128, 256) for pairs in (False, True)),
    TopKConfig("sm_103a", 8),
    IndexerConfig(32, 4),
    IndexerConfig(64, 1, page_size=64, ends="lengths", clean=False, arch="sm_103a"),
]  # fmt: skip


@pytest.mark.parametrize("config", VARIED, ids=lambda c: c.name[:60])
def test_what_is_pasted_into_a_catalogue_is_the_configuration(config, tmp_path):
    path = tmp_path / "set.toml"
    path.write_text(entry.toml(config))
    assert read_catalogue(path) == [config]


@pytest.mark.parametrize("head_dim, family", [(128, "mhapair"), (256, "mhawidepair")])
def test_parts_of_keys_are_listed_without_pairs_of_ctas_which_do_not_split(
    head_dim, family, tmp_path, monkeypatch
):
    """A call of many queries may run on pairs; where its keys are split, CTAs run alone."""
    tuned.pairs_gain_two_percent(monkeypatch, tmp_path)
    asked = f'[[config]]\nhead_dim = {head_dim}\nqkv_dtype = "bf16"\nwrite_lse = true\n'
    path = tmp_path / "set.toml"
    for more, pairs in (("", True), ('split_keys = true\no_dtype = "f32"\n', False)):
        path.write_text(asked + more)
        families = [config.schedule.family for config in read_catalogue(path)]
        assert families and (family in families) == pairs


def test_models_have_out_of_8_bits_in_every_kernel_that_writes_it():
    """16-bit tensors, also over an 8-bit cache, where parts are float32 and the merge rounds."""
    for kv_dtype in (None, "e4m3"):
        listed = configs_for_model(
            dtype="bf16", kv_dtype=kv_dtype, head_dim=128, heads_q=8, heads_kv=2, o_dtype="e4m3", descales="kvo",
            calls=("dense", "kvcache"), page_sizes=(16,),
        )  # fmt: skip
        writers = [c for c in listed if not isinstance(c, AppendConfig)]
        parts = [c for c in writers if getattr(c, "split_keys", False)]
        assert {c.o_dtype for c in writers if c not in parts} == {"e4m3"}
        assert parts and {c.o_dtype for c in parts} == {"f32"}
        assert all(c.descales.o for c in writers if not isinstance(c, CombineConfig))


def flags(kind: str, said: dict) -> list[str]:
    """The command line of an entry."""
    found = ["--kernel", kind] if kind not in ("config", "model") else []
    for name, value in said.items():
        flag = "--" + name.replace("_", "-")
        if name == "sink" and value is True:
            found.append(flag)
        elif isinstance(value, bool):
            found.append(flag if value else f"--no-{name.replace('_', '-')}")
        elif name == "aux":
            found += [word for dtype, rank in value for word in (flag, f"{dtype}:{rank}")]
        elif isinstance(value, list):
            found += [flag, *map(str, value)]
        else:
            found += [flag, str(value)]
    return found


def parsed(arguments: list[str]) -> list:
    of_model = {"--heads-q", "--catalogue"} & set(arguments)
    command = "export" if of_model else "export-kernel"
    return configs_of(command_line._parser().parse_args([command, *arguments]))


@pytest.mark.parametrize("config", VARIED, ids=lambda c: c.name[:60])
def test_flags_say_what_an_entry_says(config):
    assert parsed(flags(*entry.entry_of(config))) == [config]


def test_every_field_of_every_kind_has_a_flag():
    parser = command_line._parser()
    assert set(entry_fields.MODEL) <= set(vars(parser.parse_args(["export"])))
    options = set(vars(parser.parse_args(["export-kernel"])))
    for kind in entry_fields.KINDS.keys() - {"model"}:
        assert {
            "qkv_dtype" if name == "dtype" else name for name in entry_fields.KINDS[kind]
        } <= options


def test_the_flags_of_a_model_are_those_of_its_entry(tmp_path):
    path = tmp_path / "set.toml"
    path.write_text("""[[model]]
head_dim = 64
heads_q = 8
heads_kv = 2
dtype = "fp16"
calls = ["dense", "paged"]
page_sizes = [32]
causal = true
windows = [[], [127, 0], [-1, 5]]
chunk = 512
sink = "bf16"
softcap = 30
return_lse = [false, true]
""")
    line = (
        "--head-dim 64 --heads-q 8 --heads-kv 2 --dtype fp16 --calls dense paged --page-sizes 32 --causal "
        "--windows full 127:0 :5 --chunk 512 --sink bf16 --softcap 30 --return-lse false true"
    )
    assert parsed(line.split()) == read_catalogue(path)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("--head-dim 64 --kernel append --group 2", "--group: not of a kernel that writes"),
        ("--catalogue serving --heads-q 2", "--heads-q: with --catalogue"),
        ("--heads-q 2", "one of --catalogue, --hf-config and --head-dim"),
        ("--head-dim 64 --mask Causal", "mask: 'Causal'; accepted: calls of Both, Causal"),
        ("--head-dim 64 --mask soft_cap(3.0)", "mask: .*accepted: calls of Both"),
        ("--head-dim 64 --causal --mask Full()", "causal and mask: two masks"),
        ("--head-dim 64 --score-mod alibi", "score_mod: 'alibi'; accepted: calls of additive_bias"),
        ("--head-dim 60 --kernel append", "head_dim: 60; accepted: a multiple of 8"),
        ("--heads 12 --kernel indexer", "heads: 12; accepted: a multiple of 8 up to 128"),
        ("--ctas 3 --kernel topk", "ctas=3; accepted: 1, 2, 4, 8"),
        ("--heads 64 --kernel indexer --page-size 24", "page_size=24; accepted: 8, 16, 32"),
    ],
)  # fmt: skip
def test_flags_that_mean_nothing_together_are_refused(arguments, message):
    with pytest.raises(ExportError, match=message):
        parsed(arguments.split())


@pytest.mark.parametrize(
    "said, message",
    [
        ('head_dim = "64"', "head_dim: '64'; accepted: a whole number"),
        ("head_dim = 64\ncausal = 1", "causal: 1; accepted: true or false"),
        ("head_dim = 64\naux = [4]", r"aux: \[4\]; accepted: pairs"),
        ("group = 1", "head_dim: not given"),
        ("head_dim = 64\nq_block = 64\nkv_block = 40", "kv_block: 40; accepted: multiples of 16"),
        ("head_dim = 64\nq_block = 64", "kv_block: 0; accepted: multiples of 16"),
    ],
)
def test_values_of_the_wrong_type_are_refused_by_name(said, message, tmp_path):
    path = tmp_path / "set.toml"
    path.write_text(f'[[config]]\nqkv_dtype = "bf16"\n{said}\n')
    with pytest.raises(ExportError, match=message):
        read_catalogue(path)


def test_single_brackets_are_refused(tmp_path):
    path = tmp_path / "set.toml"
    path.write_text("[model]\nhead_dim = 64\n")
    with pytest.raises(ExportError, match=r"not a list of tables; accepted: \[\[model\]\]"):
        read_catalogue(path)


def test_another_arch_chooses_its_own_share_of_emulated_exponentials():
    # sm_103a computes 2^x in hardware at twice the rate: none on the FMA units, unless asked for
    assert for_arch(PLAIN, "sm_103a") == choose_config(
        qkv_dtype="bf16", head_dim=64, causal=True, arch="sm_103a", family="mha1q"
    )
    asked = PLAIN.with_(exp2_emulated=5)
    assert for_arch(asked, "sm_103a").schedule.exp2_emulated == 5


# --- what a call says that finds no kernel


@pytest.fixture
def loaded(monkeypatch):
    monkeypatch.setattr(functions, "_functions", {})
    monkeypatch.setattr(functions, "_registered", {})
    for config in EXPORTED:
        functions.register(config, "cuda", lambda: None)


def test_an_error_is_a_screenful_with_the_nearest_kernel_and_an_entry(
    loaded, monkeypatch, tmp_path
):
    monkeypatch.setenv("CUTE_FA4_JIT", "error")
    asked = RICH.with_(write_lse=False, page_size=24)
    with pytest.raises(JitError) as caught:
        missing.check(asked, "cuda")
    text = str(caught.value)
    # The height of a terminal: 24 lines; the longest is the name of the nearest kernel.
    assert len(text.splitlines()) <= 24 and max(map(len, text.splitlines())) <= 190
    assert f"nearest  {RICH.name}, which differs in" in text
    assert "page_size: 24 asked, 16 there" in text and "write_lse: False asked, True there" in text
    path = tmp_path / "set.toml"
    path.write_text(text[text.index("[[config]]") :])
    assert read_catalogue(path) == [asked]


def test_the_page_shows_such_an_error(loaded):
    functions.register(PLAIN, "emulator", lambda: None)
    text = missing.explained(PLAIN.with_(write_lse=True), "emulator", "CUTE_FA4_JIT=error")
    assert f"```text\n{text}```" in (ROOT / "docs" / "deployment.md").read_text()


def test_an_error_without_anything_loaded_says_so(loaded, monkeypatch):
    monkeypatch.setenv("CUTE_FA4_JIT", "error")
    with pytest.raises(JitError, match="nearest  none"):
        missing.check(PLAIN, "emulator")


def test_functions_of_the_user_have_no_entry(loaded, monkeypatch):
    config = FA4Config(score_mod=ScoreMod.of(lambda *args: args[0]))
    with pytest.raises(ConfigDataError):
        entry.toml(config)
    assert "functions of your own" in missing.explained(config, "cuda", "")


def test_a_warning_says_the_same(loaded, monkeypatch):
    monkeypatch.setenv("CUTE_FA4_JIT", "warn")
    with pytest.warns(JitWarning, match="nearest"):
        missing.check(PLAIN.with_(group=2), "cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monkeypatch.setenv("CUTE_FA4_JIT", "allow")
        missing.check(PLAIN.with_(group=2), "cuda")


def test_a_backward_entry_refuses_more_exponentials_than_there_are(tmp_path):
    path = tmp_path / "set.toml"
    path.write_text('[[backward]]\nhead_dim = 64\ndtype = "bf16"\nexp2_emulated = 65\n')
    with pytest.raises(ExportError, match="exp2_emulated=65; accepted: a number from 0 to 64"):
        read_catalogue(path)
