"""Generate `python/trinitylake/definitions/trinitylake_pb2.py` and its stub from `proto/trinitylake.proto`.

    python scripts/generate_definitions.py            # write the two files
    python scripts/generate_definitions.py --check    # exit 1 if the files in the tree are stale

The generator is pinned (`grpcio-tools==1.85.1`, dependency group `lint`), so that two machines agree on the bytes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto" / "trinitylake.proto"
TARGET = ROOT / "python" / "trinitylake" / "definitions"
STUB = "trinitylake_pb2.pyi"
OUTPUTS = ("trinitylake_pb2.py", STUB)
GENERATOR_VERSION = "1.85.1"


def generate(directory: Path) -> dict[str, bytes]:
    """Run protoc into `directory`; file name to content of what it wrote."""
    import grpc_tools
    from grpc_tools import protoc

    includes = Path(grpc_tools.__file__).parent / "_proto"
    arguments = ["protoc", f"--proto_path={PROTO.parent}", f"--proto_path={includes}"]
    arguments += [f"--python_out={directory}", f"--pyi_out={directory}", str(PROTO)]
    if code := protoc.main(arguments):
        raise SystemExit(code)
    files = {name: (directory / name).read_bytes() for name in OUTPUTS}
    # The stub generator leaves out the arguments of Mapping, which a strict type check refuses.
    files[STUB] = b'# mypy: disable-error-code="type-arg"\n' + files[STUB]
    return files


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only, write nothing")
    check: bool = parser.parse_args().check

    installed = version("grpcio-tools")
    if installed != GENERATOR_VERSION:
        print(f"grpcio-tools {installed} is installed, but {GENERATOR_VERSION} is pinned", file=sys.stderr)
        return 1

    with tempfile.TemporaryDirectory() as directory:
        files = generate(Path(directory))
    current = {name: (TARGET / name).read_bytes() if (TARGET / name).exists() else None for name in files}
    stale = [name for name, data in files.items() if current[name] != data]
    if check:
        for name in stale:
            print(f"{TARGET / name} is stale: run scripts/generate_definitions.py", file=sys.stderr)
        return 1 if stale else 0
    for name in stale:
        (TARGET / name).write_bytes(files[name])
    return 0


if __name__ == "__main__":
    sys.exit(main())
