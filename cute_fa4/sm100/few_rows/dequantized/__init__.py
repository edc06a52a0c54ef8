"""The family for few query rows of 16 bits over keys of 8 or 4 bits: four warps of the CTA convert them to fp16."""
