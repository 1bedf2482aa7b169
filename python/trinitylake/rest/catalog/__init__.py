"""The catalog that requests use: versions and transactions, lists of names, and responses that contain a table."""
