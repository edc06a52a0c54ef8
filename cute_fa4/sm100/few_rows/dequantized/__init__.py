"""The family for few query rows of 16 bits over 8-bit keys: four warps of the CTA convert key tiles to fp16."""
