"""`python benches/run.py`, from any folder: the same as `python -m benches` at the top of the repository."""

import runpy
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)
runpy.run_module("benches", run_name="__main__")
