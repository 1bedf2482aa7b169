"""Data of the web page that shows a lakehouse in a browser (docs/guide/page.md). Read-only.

Lists of names, namespaces and views come from the endpoints of the catalog. Principals and roles are the same; all
names of objects pass `visibility.py`.
"""
