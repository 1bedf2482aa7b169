#!/bin/bash
# usage: run/cases.sh outdir names...
out=$1; shift
for n in "$@"; do f=$(ls /work/shared/cases/$n*.py | head -1); PYTHONPATH=/work/shared/cases/values timeout 300 .venv/bin/python -W ignore $f > $out/$(basename $f .py).txt 2>&1; done
echo done > $out/DONE
