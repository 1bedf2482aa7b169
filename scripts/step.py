"""Runs one step of a set-up and says how far it is, in few lines; what the step prints is shown if it fails.

    python scripts/step.py "Compile the core" maturin develop --release
    python scripts/step.py --quietly "Fetch Spark" uv sync …     # one line, when it is done

On a terminal one line follows the last thing that the step said. Elsewhere a line comes every SECONDS_BETWEEN_LINES.
With VERBOSE=1 all of it is shown. Only the standard library: this runs before anything is installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time

SECONDS_BETWEEN_LINES = 20
SECONDS_BETWEEN_LOOKS = 0.5
#: Colours and movements of the cursor.
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
#: Time between two lines, so that a log without a terminal shows the progress of a long compilation.
ENVIRONMENT = {**os.environ, "CARGO_TERM_PROGRESS_WHEN": "always", "CARGO_TERM_PROGRESS_WIDTH": "70"}


class Output:
    """Lines that a process prints, and the last of them."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.last = ""

    def follow(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        while chunk := process.stdout.read1(65536):  # type: ignore[attr-defined]
            self.data += chunk
            lines = re.split(r"[\r\n]+", CONTROL.sub("", chunk.decode(errors="replace")))
            self.last = next((line.strip() for line in reversed(lines) if line.strip()), self.last)


def follow(title: str, output: Output, process: subprocess.Popen[bytes], *, is_quiet: bool) -> None:
    """Print the progress of the step until it ends."""
    is_terminal = sys.stderr.isatty() and not is_quiet
    began = time.monotonic()
    said = began
    while process.poll() is None:
        time.sleep(SECONDS_BETWEEN_LOOKS)
        elapsed = time.monotonic() - began
        line = f"  {title}: {elapsed:.0f} s  {output.last}"
        if is_terminal:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{line[:width]}", end="", file=sys.stderr, flush=True)
        elif not is_quiet and time.monotonic() - said > SECONDS_BETWEEN_LINES:
            said = time.monotonic()
            print(line, file=sys.stderr, flush=True)
    if is_terminal:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def main(arguments: list[str]) -> int:
    is_quiet = arguments[0] == "--quietly"
    title, *command = arguments[is_quiet:]
    if os.environ.get("VERBOSE"):
        print(f"+ {' '.join(command)}", file=sys.stderr, flush=True)
        return subprocess.run(command, check=False).returncode
    began = time.monotonic()
    output = Output()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=ENVIRONMENT) as process:
        reader = threading.Thread(target=output.follow, args=(process,))
        reader.start()
        try:
            follow(title, output, process, is_quiet=is_quiet)
        except KeyboardInterrupt:
            process.terminate()
            return 130
        reader.join()
    elapsed = time.monotonic() - began
    if process.returncode:
        sys.stderr.buffer.write(output.data)
        print(f"✗ {title} failed after {elapsed:.0f} s: {' '.join(command)}", file=sys.stderr, flush=True)
    else:
        print(f"✓ {title} ({elapsed:.0f} s)", file=sys.stderr, flush=True)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
