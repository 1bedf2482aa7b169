"""The handlers, by what they are about: namespaces, tables, views, transactions, scans, metrics."""
