"""Access to data files for clients without credentials: temporary ones, or signed requests."""
