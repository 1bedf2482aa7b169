"""Open transactions of clients: who owns them, and how much memory they take."""
