"""`python -m benches [NAMES] [--quick] [--results FILE]`: run benchmarks and report the figures."""

from __future__ import annotations

import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benches import (
    bench_bulk,
    bench_change_feed,
    bench_commit,
    bench_group_append,
    bench_ingestion,
    bench_lookup,
    bench_maintenance,
    bench_merge,
    bench_merge_on_read,
    bench_process,
    bench_rest,
    bench_rounds,
    bench_rows,
    bench_spark,
    bench_spark_iceberg,
    bench_sql,
)
from benches.measure import Bench, Figure
from benches.report import cells, machine, print_report, write_results

BENCHMARKS: dict[str, Callable[[Bench], None]] = {
    **bench_rounds.BENCHMARKS,
    **bench_commit.BENCHMARKS,
    **bench_lookup.BENCHMARKS,
    **bench_bulk.BENCHMARKS,
    **bench_rows.BENCHMARKS,
    **bench_group_append.BENCHMARKS,
    **bench_ingestion.BENCHMARKS,
    **bench_merge.BENCHMARKS,
    **bench_merge_on_read.BENCHMARKS,
    **bench_change_feed.BENCHMARKS,
    **bench_sql.BENCHMARKS,
    **bench_spark.BENCHMARKS,
    **bench_spark_iceberg.BENCHMARKS,
    **bench_rest.BENCHMARKS,
    **bench_maintenance.BENCHMARKS,
    **bench_process.BENCHMARKS,
}


def main(
    names: Annotated[list[str] | None, typer.Argument(help=f"Some of {', '.join(BENCHMARKS)}; default: all.")] = None,
    quick: Annotated[bool, typer.Option(help="Small sizes, to check that everything runs.")] = False,
    results: Annotated[Path | None, typer.Option(help="Replace the rows of these benchmarks in this file.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Folder on the disk to measure; default: temporary.")] = None,
) -> None:
    """Run benchmarks. The exit code is 1 if one of them fails; a limit that is missed is a result."""
    unknown = [name for name in names or () if name not in BENCHMARKS]
    if unknown:
        raise typer.BadParameter(f"{', '.join(unknown)}: expected some of {', '.join(BENCHMARKS)}")
    progress = Console(stderr=True)

    def show(figure: Figure) -> None:
        progress.print("  " + " | ".join(cell for cell in cells(figure) if cell), highlight=False)

    root = Path(tempfile.mkdtemp(prefix="trinitylake-bench-", dir=folder))
    bench = Bench(root, quick=quick, on_figure=show)
    facts = machine(root)
    failed = False
    try:
        for name in names or BENCHMARKS:
            bench.benchmark = name
            progress.rule(name)
            try:
                BENCHMARKS[name](bench)
            except Exception:
                failed = True
                traceback.print_exc()
    finally:
        bench.remove()
    print_report(bench.figures, facts, Console(width=None if sys.stdout.isatty() else 200))
    if results is not None:
        write_results(results, bench.figures, facts, list(BENCHMARKS))
    raise typer.Exit(int(failed))


if __name__ == "__main__":
    typer.run(main)
