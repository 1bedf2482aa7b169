"""Access delegation for data files: temporary credentials and signed requests."""
