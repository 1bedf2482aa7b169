"""The HTTP side of the server: the socket, the connection, the table of routes, what is counted and logged."""
