"""The family for many 16-bit query rows over 8-bit keys: two query tiles, two warps dequantize K and V in place."""
