"""Iceberg inside a lakehouse: PyIceberg on the lakehouse's storage, tables staged in transactions.

`io.py` is PyIceberg's file access below the root. `staging.py` is one managed table in one transaction, over
`transaction.py` (PyIceberg's table and transaction), `append.py` and `manifest.py` (appends that can be redone),
`metadata.py` (immutable metadata) and `rules.py` (what may be written). `rebase.py` redoes staged changes on what
somebody else committed first. `external.py` and `federated.py` are tables that live elsewhere.

Importing this package loads none of it.
"""
