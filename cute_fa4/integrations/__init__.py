"""Attention as other packages call it. None of them is imported before it is asked for.

sdpa.py          torch.nn.functional.scaled_dot_product_attention
transformers.py  attn_implementation="cute_fa4" of Hugging Face models; transformers_masks.py has their masks
vllm.py          the functions that vLLM's FlashAttention backend imports
"""
