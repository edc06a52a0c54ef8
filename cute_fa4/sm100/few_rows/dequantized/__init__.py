"""The family for few query rows of 16 bits over keys of 8 or 4 bits: eight warps convert them to fp16."""
