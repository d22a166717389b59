"""eagle3-convert: EAGLE-3 draft models, from what a trainer wrote to what an engine really loads."""

from converter.version import __version__

__all__ = ["__version__"]
