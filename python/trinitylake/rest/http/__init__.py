"""HTTP server: socket, connections, ASGI application, routes, metrics and logs."""
