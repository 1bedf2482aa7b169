"""The `trinitylake` command: tables for people, `--json` for programs.

Exit codes: 0 fine, 1 failed, 2 usage, 3 conflict, 4 not found, 5 corrupt.
"""


def main() -> None:
    """Run the command line; ends the process with its exit code."""
    import gc
    import os
    import sys
    import warnings

    # `head` creates 100,000 objects by imports; to collect none of them, also at the end, saves a quarter of its time.
    gc.set_threshold(400_000)
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")  # pydantic searches all installed packages for plugins

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
    try:
        app(prog_name="trinitylake")
    finally:
        gc.freeze()
