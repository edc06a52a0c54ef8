"""Configurations of the indexer kernels whose code differs, by name."""

from cute_fa4.sm100.indexer.config import IndexerConfig, TopKConfig

VARIANTS: dict[str, IndexerConfig | TopKConfig] = {
    "indexer": IndexerConfig(64, 2),
    "indexer pages lengths": IndexerConfig(64, 1, page_size=64, ends="lengths", clean=False),
    "indexer B300 24 heads": IndexerConfig(24, 4, arch="sm_103a"),
    "indexer 8 heads": IndexerConfig(8, 16),
    "topk": TopKConfig(),
    "topk 8 CTAs B300": TopKConfig("sm_103a", 8),
}
