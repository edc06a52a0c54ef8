"""The family for many 16-bit query rows over 8-bit or 4-bit keys: two query tiles, and two warps that dequantize."""
