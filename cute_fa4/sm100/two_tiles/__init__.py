"""The family of two query tiles a CTA: its kernel, schedule, orders of products, barriers, memory map, warps."""
