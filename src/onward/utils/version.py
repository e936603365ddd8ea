"""The one place that says which version this is; pyproject.toml reads it, too."""

__version__ = "0.2.0.dev0"
