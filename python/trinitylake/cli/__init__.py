"""The `trinitylake` command: tables for people, `--json` for programs.

Exit codes: 0 fine, 1 failed, 2 usage, 3 conflict, 4 not found, 5 corrupt.
"""


def main() -> None:
    """Run the command line; ends the process with its exit code."""
    from trinitylake.cli.app import app

    app(prog_name="trinitylake")
