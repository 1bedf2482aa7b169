"""Runs test programs that were compiled for Windows on Wine: `python scripts/test_on_wine.py FOLDER`.

FOLDER is the `deps` folder of cargo. Wine before version 9 has no `bcryptprimitives.dll`, of which Rust's standard
library uses one function. It is compiled into the folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

RANDOM = """
__declspec(dllimport) unsigned char SystemFunction036(void *, unsigned long);
__declspec(dllexport) int ProcessPrng(unsigned char *bytes, unsigned long long size) {
    return SystemFunction036(bytes, (unsigned long)size);
}
"""


def main() -> None:
    """Run the newest test program of each crate. Returns 1 if one fails."""
    folder = Path(sys.argv[1])
    source = folder / "random.c"
    source.write_text(RANDOM)
    library = folder / "bcryptprimitives.dll"
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-windows-gnu", "-shared"]
    subprocess.run([*compiler, "-o", library, source, "-ladvapi32"], check=True)
    environment = {**os.environ, "WINEDEBUG": "-all", "WINEPREFIX": str(folder.resolve() / "wine")}
    failed = False
    for crate in ("trinitylake_base", "trinitylake_storage"):
        program = max(folder.glob(f"{crate}-*.exe"), key=lambda path: path.stat().st_mtime)
        failed |= subprocess.run(["wine", program, "--quiet"], env=environment, timeout=900).returncode != 0
    sys.exit(failed)


if __name__ == "__main__":
    main()
