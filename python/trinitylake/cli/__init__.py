"""The `trinitylake` command, which prints tables for people and, with `--json`, JSON for programs.

Exit codes: 0 fine, 1 failed, 2 usage, 3 conflict, 4 not found, 5 corrupt.
"""

from contextlib import suppress


def main() -> None:
    """Run the command line, and end the process with the exit code."""
    import atexit
    import gc
    import os
    import sys
    import warnings

    code: int | str | None = 1
    # If a standard descriptor is closed, as in some daemons and cron jobs, Python has no stream for it.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115

    def end() -> None:
        """End the process without finalizing the interpreter, which would take a sixth of the time of `head`.

        If a thread of Arrow releases a Python file during the finalization, the process aborts (apache/arrow#33975).
        """
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))

    atexit.register(end)  # registered first, so that it runs after all other functions
    gc.set_threshold(400_000)  # of 100,000 objects that imports for `head` create, none is garbage
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")  # pydantic searches all installed packages for plugins
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads of numpy, for linear algebra only

    try:
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
    except SystemExit as ended:
        code = ended.code
        raise
    except KeyboardInterrupt:  # Ctrl-C outside of a command, such as during imports
        code = 130
