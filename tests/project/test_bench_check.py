"""`make bench-check`: the instructions of the kernels beside those that are kept."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import bench_check  # noqa: E402


def reported(function: str, name: str, count: int, before: int | None = None) -> str:
    """A line as the benchmark prints it; from the second run on it has the count of the run before beside its own."""
    values = {"new": count} if before is None else {"new": count, "old": before}
    profile = {"data": {"parts": [{"metrics": {"Ir": {"values": values}}}]}}
    return json.dumps({"function_name": function, "id": name, "profiles": [profile]})


def test_a_kernel_that_takes_more_is_told() -> None:
    """The hash of paths took twice as long after a change of its loop, and nobody saw it for a day."""
    counts = bench_check.instructions([reported("hash", "short", 1031, 900), reported("hash", "long", 5000)])
    assert counts == {"hash, short": 1031, "hash, long": 5000}
    assert bench_check.faults(counts, {"hash, short": 1002, "hash, long": 9000}) == []
    assert bench_check.faults(counts, {"hash, short": 1000, "hash, long": 5000}) == [
        "hash, short: 1,031 instructions, +3.1% beside 1,000"
    ]


def test_a_kernel_that_is_not_counted_is_told() -> None:
    """A benchmark was renamed, and its kernel was compared with nothing from then on."""
    assert bench_check.faults({"hash, new": 10}, {"hash, old": 10}) == [
        "hash, new: nothing is kept of it",
        "hash, old: kept, and not counted any more",
    ]


def test_all_kernels_are_kept() -> None:
    """A count of a kernel that is gone would fail `make bench-check` for whoever runs it next."""
    source = (ROOT / "rust/format/benches/kernels.rs").read_text()
    cases = set()
    for block in source.split("#[library_benchmark]\n")[1:]:
        function = re.search(r"^fn (\w+)", block, re.M)
        assert function is not None
        cases |= {f"{function[1]}, {name}" for name in re.findall(r"#\[bench::(\w+)", block)}
    assert cases == set(json.loads(bench_check.KEPT.read_text()))
