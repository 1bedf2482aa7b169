"""Data of the web page that shows a lakehouse in a browser (docs/guide/page.md). Read-only.

Lists of names, namespaces and views come from the endpoints of the catalog. The page uses the same principals and
roles, and `answers.py` filters all names of objects.
"""
