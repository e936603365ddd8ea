"""The claims of "Simple Recurrence Improves Masked Language Models"."""
