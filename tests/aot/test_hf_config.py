"""export --hf-config: what published config.json files say becomes the kernels that servers of these models call."""

import json

import pytest

from cute_fa4 import __main__ as command_line
from cute_fa4.aot import entry, hf_config
from cute_fa4.aot.manifest import ExportError

DENSE = dict(
    num_attention_heads=32, num_key_value_heads=8, hidden_size=4096, torch_dtype="bfloat16"
)
DEEPSEEK = dict(
    num_attention_heads=128, num_key_value_heads=128, hidden_size=7168, kv_lora_rank=512, qk_rope_head_dim=64,
    qk_nope_head_dim=128, v_head_dim=128,
)  # fmt: skip
# The fields that decide, as the models' config.json files have them -> what the first entry says.
INDEXER = dict(index_topk=2048, index_n_heads=64, index_head_dim=128)
PUBLISHED = {
    "Llama 3 8B": (DENSE, dict(head_dim=128, heads_q=32, heads_kv=8, dtype="bf16", windows=([],))),
    "Mistral 7B v0.1": (DENSE | dict(sliding_window=4096), dict(windows=([4095, 0],))),
    "Qwen2.5 7B": (
        dict(num_attention_heads=28, num_key_value_heads=4, hidden_size=3584, torch_dtype="bfloat16")
        | dict(sliding_window=131072, use_sliding_window=False, max_window_layers=28),
        dict(head_dim=128, heads_q=28, heads_kv=4, windows=([],)),
    ),
    "Gemma 2 9B": (
        dict(num_attention_heads=16, num_key_value_heads=8, head_dim=256, hidden_size=3584, model_type="gemma2")
        | dict(sliding_window=4096, attn_logit_softcapping=50.0, torch_dtype="float32"),
        dict(head_dim=256, windows=([], [4095, 0]), softcap=50.0, dtype="bf16"),
    ),
    "Gemma 3 27B": (
        {"text_config": dict(num_attention_heads=32, num_key_value_heads=16, head_dim=128, hidden_size=5376)
         | dict(sliding_window=1024, sliding_window_pattern=6)},
        dict(heads_q=32, heads_kv=16, windows=([], [1023, 0])),
    ),
    "GPT-OSS 20B": (
        dict(num_attention_heads=64, num_key_value_heads=8, head_dim=64, hidden_size=2880, model_type="gpt_oss")
        | dict(sliding_window=128, layer_types=["sliding_attention", "full_attention"]),
        dict(head_dim=64, windows=([], [127, 0]), sink="bf16"),
    ),
    "Llama 4 Scout": (
        {"text_config": dict(num_attention_heads=40, num_key_value_heads=8, head_dim=128, hidden_size=5120)
         | dict(attention_chunk_size=8192)},
        dict(heads_q=40, windows=([],), chunk=8192),
    ),
    "Falcon 7B": (
        dict(num_attention_heads=71, hidden_size=4544, multi_query=True, new_decoder_architecture=False),
        dict(head_dim=64, heads_q=71, heads_kv=1),
    ),
    "BERT base": (
        dict(num_attention_heads=12, hidden_size=768, model_type="bert"),
        dict(head_dim=64, causal=False, calls=("dense", "packed")),
    ),
    "DeepSeek V3": (DEEPSEEK, dict(head_dim=576, heads_q=128, heads_kv=1, calls=("latent",))),
    "DeepSeek V3.2": (DEEPSEEK | INDEXER, dict(calls=("latent_rows",), page_sizes=(1,))),
}  # fmt: skip


def written(directory, said):
    path = directory / "config.json"
    path.write_text(json.dumps(said))
    return path


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_are_read_and_have_kernels(name, tmp_path):
    said, expected = PUBLISHED[name]
    models = hf_config.models_of(written(tmp_path, said).parent, page_size=64)
    assert {field: models[0][field] for field in expected} == expected
    assert all(entry.configs_of("model", model, name) for model in models)
    if said.get("kv_lora_rank"):  # prefill, and chunks of the context that every new token sees
        assert [model.get("rope_depth") for model in models[1:3]] == [64, 64]
        indexers = [model for model in models if model["calls"] == ("indexer",)]
        assert indexers == [
            dict(dtype="bf16", head_dim=128, heads_q=64, heads_kv=1, calls=("indexer",), page_sizes=(64,))
        ] * ("index_n_heads" in said)  # fmt: skip
        assert models[2]["causal"] is False and models[2]["return_lse"] == (True,)


@pytest.mark.parametrize("kv_dtype", [None, "e4m3"])
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_list_of_several_calls_is_those_of_each(name, kv_dtype, tmp_path):
    """A call is listed by the entries that have its tensors, alone and beside others."""
    path = written(tmp_path, PUBLISHED[name][0])

    def listed(calls):
        models = hf_config.models_of(path, kv_dtype=kv_dtype, calls=calls)
        return {config for model in models for config in entry.configs_of("model", model, name)}

    if PUBLISHED[name][1].get("causal") is False and kv_dtype is not None:
        with pytest.raises(ExportError, match="--kv-dtype: 'e4m3' of an encoder"):
            listed(None)
        return
    served = {
        call for model in hf_config.models_of(path, kv_dtype=kv_dtype) for call in model["calls"]
    }
    alone = [listed((call,)) for call in served]
    assert all(alone) and listed(None) == listed(tuple(served)) == set().union(*alone)


@pytest.mark.parametrize("flags", [["--causal"], ["--no-causal"], ["--return-lse", "false"]])
def test_flags_leave_what_calls_are_for(flags, tmp_path, capsys):
    """Chunks of an MLA context are merged by their LSE, and every new token sees them, whatever a flag says."""
    path = written(tmp_path, DEEPSEEK)

    def listed(*arguments):
        assert command_line.main(["export", "--list", "--hf-config", str(path), *arguments]) == 0
        return set(capsys.readouterr().out.split())

    chunks = {name for name in listed() if "192" in name and "causal" not in name}
    assert chunks and chunks <= listed(*flags)
    assert all("lse" in name for name in chunks)


def test_the_command_lists_the_same_kernels_as_the_flags_of_a_model(tmp_path, capsys):
    path = written(tmp_path, DENSE)

    def listed(*arguments):
        assert command_line.main(["export", "--list", *arguments]) == 0
        return set(capsys.readouterr().out.split())

    flags = "--head-dim 128 --heads-q 4 --heads-kv 1 --page-sizes 16".split()
    paged = [*flags, "--calls", "paged"]
    without_cache = listed(*flags, "--calls", "packed")
    of_16 = listed(*paged, "--kv-dtype", "e4m3", "--descales", "kv")
    of_8 = listed(*paged, "--dtype", "e4m3")
    asked = [
        "--hf-config",
        str(path),
        *"--kv-dtype e4m3 --page-size 16 --tensor-parallel 8".split(),
    ]
    assert listed(*asked) == without_cache | of_16 | of_8
    assert listed(*asked, "--calls", "paged") == of_16 | of_8
    assert listed(*asked, "--calls", "packed") == without_cache
    assert listed(*asked, "--q-quantize", "before") == without_cache | of_8
    # --dtype is the model's, so out of 8-bit queries has it.
    of_8 = listed(*paged, "--dtype", "e4m3", "--o-dtype", "fp16")
    assert of_8 < listed(*asked, "--dtype", "fp16")


@pytest.mark.parametrize(
    "said, arguments, message",
    [
        ({}, [], "no num_attention_heads; accepted: config.json of a transformers model"),
        (DENSE, ["--tensor-parallel", "3"], "--tensor-parallel: 3 of 32 heads"),
        (
            DENSE | {"num_attention_heads": 40, "num_key_value_heads": 8},
            ["--tensor-parallel", "5"],
            "--tensor-parallel: 5 of 8 key/value heads",
        ),
        ({"n_head": 12}, [], "no hidden_size; accepted"),
        (DENSE, ["--calls", "latent"], "--calls: ['latent'] of the model of"),
        (DEEPSEEK, ["--calls", "packed", "paged"], "accepted: latent, packed, dense"),
        (DENSE, ["--q-quantize", "before"], "--q-quantize: 'before' without --kv-dtype; accepted"),
        (DENSE, ["--head-dim", "64"], "give one of --catalogue, --hf-config and --head-dim"),
        (DEEPSEEK | {"kv_lora_rank": 256}, [], "kv_lora_rank 256, qk_rope_head_dim 64; accepted: 512 and 64"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused(said, arguments, message, tmp_path, capsys):
    path = written(tmp_path, said)
    assert command_line.main(["export", "--list", "--hf-config", str(path), *arguments]) == 1
    assert message in capsys.readouterr().err
