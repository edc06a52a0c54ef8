"""The family for 16-bit queries over 8-bit or 4-bit keys with wide heads or RoPE columns, dequantized in place."""
