"""Files from Maven for the other scripts of this folder."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
TARGET = HERE.parent / "target" / "compatibility"


def fetched(name: str) -> list[Path]:
    """Fetch the dependencies of a POM, unless they were fetched after its last change. Returns their paths."""
    pom, folder = HERE / name, TARGET / "artifacts" / name.removesuffix(".xml")
    stamp = folder / "fetched.xml"
    if not stamp.exists() or stamp.read_bytes() != pom.read_bytes():
        shutil.rmtree(folder, ignore_errors=True)
        maven = shutil.which("mvn")
        if maven is None:
            raise SystemExit("Maven downloads the needed files: install it, so that `mvn` is in the path")
        command = [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
        subprocess.run(command, check=True)
        shutil.copyfile(pom, stamp)
    return sorted(path for path in folder.iterdir() if path != stamp)
