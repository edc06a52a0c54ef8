"""The family for few query rows of 16 bits over keys of 8: four warps widen the key tiles to fp16 in the CTA."""
