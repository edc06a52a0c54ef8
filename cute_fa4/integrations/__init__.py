"""Attention with the interfaces of other packages. None of them is imported before it is used.

sdpa.py          torch.nn.functional.scaled_dot_product_attention
context_parallel.py  the same inside torch's context_parallel, on DTensors
transformers.py  attn_implementation="cute_fa4" of Hugging Face models; transformers_masks.py has their masks
vllm.py          the functions that vLLM's FlashAttention and FlashMLA backends import
flashinfer/      FlashInfer's batched functions and wrappers, and its latent-cache decode
"""
