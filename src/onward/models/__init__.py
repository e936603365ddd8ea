"""The three systems, and what they share: states, saving, generation, losses, loading."""
