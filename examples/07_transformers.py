"""A Hugging Face model writes text with this package's attention, and with eager attention.

    python examples/07_transformers.py                     CPU: the kernel's sm_100a PTX on the emulator
    python examples/07_transformers.py --device cuda       the same kernel on a B200 or B300
    python examples/07_transformers.py --tokens 12

The model is a Llama of two layers with random weights, so it writes nonsense. The example checks that both
attentions write the same tokens, prints the distance of their logits from the float32 model, and checks that this
package is not less accurate than eager attention.
"""

import argparse
import sys
import time
import warnings

import torch

from cute_fa4 import EmulatorWarning

try:
    from transformers import LlamaConfig, LlamaForCausalLM
except ImportError:
    sys.exit("transformers is not installed: pip install 'cute-fa4[transformers]'")

from cute_fa4.integrations import transformers as attention_for_transformers

PROMPTS = ["attention", "keys and values of different lengths", "x"]


def tiny_llama(device) -> LlamaForCausalLM:
    """Two layers, four query heads on two key/value heads, a token for each byte; byte 0 is padding."""
    torch.manual_seed(111)  # the best token is ahead of the next by more than rounding
    config = LlamaConfig(
        vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, initializer_range=0.1, bos_token_id=None, eos_token_id=None,
        pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).to(device, torch.bfloat16).eval()


def padded_on_the_left(texts: list[str], device) -> tuple[torch.Tensor, torch.Tensor]:
    """-> tokens, attention mask, both (batch, longest)."""
    longest = max(len(text) for text in texts)
    rows = [list(text.encode().rjust(longest, b"\0")) for text in texts]
    tokens = torch.tensor(rows, device=device)
    return tokens, (tokens != 0).long()


@torch.no_grad()
def logits(model, written: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Logits of every token in one forward pass, (batch, length, 256) float32."""
    mask = torch.nn.functional.pad(mask, (0, written.shape[1] - mask.shape[1]), value=1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    result = model(input_ids=written, attention_mask=mask, position_ids=positions).logits
    return result.float()[mask.bool()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="cpu (emulator) or cuda")
    parser.add_argument("--tokens", type=int, default=6, help="tokens to write for each prompt")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", EmulatorWarning)

    attention_for_transformers.register()
    model = tiny_llama(arguments.device)
    prompts, mask = padded_on_the_left(PROMPTS, arguments.device)
    written = {}
    for attention in ("eager", "cute_fa4"):
        model.set_attn_implementation(attention)
        begin = time.perf_counter()
        written[attention] = model.generate(
            prompts, attention_mask=mask, max_new_tokens=arguments.tokens, do_sample=False
        )
        print(f"{attention:<9} {time.perf_counter() - begin:5.1f} s")
    for row, text in zip(written["cute_fa4"], PROMPTS, strict=True):
        print(f"{text!r} -> {bytes(row[prompts.shape[1] :].tolist())!r}")
    same = written["eager"] == written["cute_fa4"]
    print(f"the same tokens: {int(same.all(1).sum())} of {len(PROMPTS)} sequences")

    found = {}
    for attention in written:
        model.set_attn_implementation(attention)
        found[attention] = logits(model, written["cute_fa4"], mask)
    model.set_attn_implementation("eager")
    exact = logits(model.float(), written["cute_fa4"], mask)
    errors = {name: float((x - exact).abs().max()) for name, x in found.items()}
    print(
        f"logits up to {exact.abs().max():.2f}; from the model in float32 they are off by at most"
    )
    for name, error in errors.items():
        print(f"    {error:.4f}  {name} in bf16")
    if not errors["cute_fa4"] <= 2 * errors["eager"]:
        raise SystemExit("our logits are further off than rounding explains")


if __name__ == "__main__":
    main()
