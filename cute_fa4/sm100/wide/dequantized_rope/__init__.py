"""The family for 16-bit K with 8-bit RoPE columns in a separate tensor: two warps dequantize them in their slot."""
