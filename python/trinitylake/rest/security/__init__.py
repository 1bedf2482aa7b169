"""Authentication and authorization: tokens, roles on names, and the gate for locations."""
