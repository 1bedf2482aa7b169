"""The `trinitylake` command: tables for people, `--json` for programs.

Exit codes: 0 fine, 1 failed, 2 usage, 3 conflict, 4 not found, 5 corrupt.
"""


def main() -> None:
    """Run the command line; ends the process with its exit code."""
    import gc
    import sys
    import warnings

    gc.set_threshold(50_000)  # collections while libraries are imported took a sixth of the time of `head`

    from trinitylake.base.import_hook import ImportHook
    from trinitylake.cli.app import app

    for stream in (sys.stdout, sys.stderr):
        # Characters that the terminal cannot encode are printed as codes.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]

    def show_warning(message: Warning | str, *_: object) -> None:
        from trinitylake.cli.output import emit_warning

        emit_warning(str(message))

    warnings.showwarning = show_warning  # type: ignore[assignment]
    sys.meta_path.insert(0, ImportHook())
    app(prog_name="trinitylake")
