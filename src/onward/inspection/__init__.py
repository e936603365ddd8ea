"""What is in a model, and what a trained one does with a text."""

from .diagnostics import Diagnostics, diagnose
from .facts import facts
from .memory_attention import memory_attention

__all__ = ["Diagnostics", "diagnose", "facts", "memory_attention"]
