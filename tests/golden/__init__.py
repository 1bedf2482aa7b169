"""Lakehouses that releases wrote, which every later release must read.

A folder for each release that changed what is written, with one archive (`order_3.tar.gz`) and one expectation
(`order_3.json.gz`) per lakehouse, made by `scripts/write_golden_files.py`. Release 0.1 is not out yet, so its folder is
still replaced.
"""
