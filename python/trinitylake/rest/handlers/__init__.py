"""Handlers of the endpoints of the catalog: namespaces, tables, views, transactions, scans, metrics."""
