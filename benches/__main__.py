"""`python -m benches [names] [--quick]`: runs benchmarks and reports each beside its peer or limit."""

from __future__ import annotations

import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benches.python import (
    bench_bulk,
    bench_bulk_spark,
    bench_catalog,
    bench_commit,
    bench_format,
    bench_hot_table,
    bench_lookup,
    bench_merge,
    bench_open,
    bench_process,
    bench_rest,
    bench_rounds,
    bench_rows,
    bench_safekeeping,
    bench_sizes,
    bench_spark,
    bench_sql,
    bench_uncoordinated,
)
from benches.python.measure import Bench, Figure, as_json
from benches.python.plots import as_svg
from benches.python.report import as_markdown, cells, machine, print_report

BENCHMARKS: dict[str, Callable[[Bench], None]] = {
    **bench_commit.BENCHMARKS,
    **bench_sizes.BENCHMARKS,
    **bench_open.BENCHMARKS,
    **bench_lookup.BENCHMARKS,
    **bench_bulk.BENCHMARKS,
    **bench_bulk_spark.BENCHMARKS,
    **bench_rows.BENCHMARKS,
    **bench_safekeeping.BENCHMARKS,
    **bench_hot_table.BENCHMARKS,
    **bench_merge.BENCHMARKS,
    **bench_uncoordinated.BENCHMARKS,
    **bench_format.BENCHMARKS,
    **bench_process.BENCHMARKS,
    **bench_catalog.BENCHMARKS,
    **bench_rest.BENCHMARKS,
    **bench_rounds.BENCHMARKS,
    **bench_spark.BENCHMARKS,
    **bench_sql.BENCHMARKS,
}


def main(
    names: Annotated[
        list[str] | None, typer.Argument(help=f"Of {', '.join(BENCHMARKS)}; all if none is given.")
    ] = None,
    quick: Annotated[bool, typer.Option(help="Small: to see that it runs, not how fast.")] = False,
    json: Annotated[str, typer.Option(help="Also write the report as JSON to this file; - for standard output.")] = "",
    markdown: Annotated[Path | None, typer.Option(help="Also write the table to this file, for docs.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Also draw how far each figure is from its goal, as SVG.")] = None,
    folder: Annotated[Path | None, typer.Option(help="On the disk to measure; a temporary folder by default.")] = None,
) -> None:
    """Run benchmarks. The exit code is 1 if one could not be run; a goal that was missed is a result."""
    unknown = [name for name in names or () if name not in BENCHMARKS]
    if unknown:
        raise typer.BadParameter(f"{', '.join(unknown)}: not one of {', '.join(BENCHMARKS)}")
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
    print_report(bench.figures, facts, progress if json == "-" else Console(width=None if sys.stdout.isatty() else 200))
    if markdown is not None:
        markdown.write_text(as_markdown(bench.figures, facts))
    if plot is not None:
        plot.write_text(as_svg(bench.figures, facts))
    if json:
        text = as_json(bench.figures, facts)
        if json == "-":
            print(text)
        else:
            Path(json).write_text(text + "\n")
    raise typer.Exit(int(failed))


if __name__ == "__main__":
    typer.run(main)
