"""The catalog that requests see: states of the lakehouse, lists of names, and responses that hold a table."""
