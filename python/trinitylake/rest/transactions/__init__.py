"""Open transactions of clients: ownership and memory."""
