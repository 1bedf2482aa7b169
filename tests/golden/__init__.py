"""Lakehouses that earlier releases wrote. They stay readable for ever: nothing in here is ever written again.

Each generation is a folder with one archive (`order_3.tar.gz`) and one expectation (`order_3.json.gz`) per lakehouse,
made by `scripts/write_golden_files.py`.
"""
