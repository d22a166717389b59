"""The one place that states the version of this tool."""

__version__ = "0.1.0"
