"""Data files: reading them, writing them, and which rows go into which file."""
