"""Who asks and what they may do: tokens, roles over names, and the gate for locations."""
