"""Lakehouses that releases wrote, and that every later release must read.

Each release that changed the written files has a folder. A lakehouse is an archive (`order_3.tar.gz`) with its expected
content (`order_3.json.gz`), written by `scripts/write_golden_files.py`. Release 0.1 is not out yet, so its folder is
still replaced.
"""
