"""Another name of cute_fa4.masks, which has every mask: as a call takes it, and as a configuration does."""

from cute_fa4.masks import *  # noqa: F403
from cute_fa4.masks import __all__ as __all__
