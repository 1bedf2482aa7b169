"""The data behind the page that shows a lakehouse in a browser (docs/guide/page.md).

Lists of names, namespaces and views come from the catalog's own routes. What is here is read-only, and asks the same
principals and roles: whatever names an object passes `visibility.py`.
"""
