"""Generate `python/trinitylake/definitions/trinitylake_pb2.py` and its stub from `proto/trinitylake.proto`.

    uv run --no-project --with-requirements target/locks/generator.txt scripts/generate_definitions.py
    uv run --no-project --with-requirements target/locks/generator.txt scripts/generate_definitions.py --check

The first writes the two files; the second exits with 1 if those in the tree are stale. The generator has a lock file
of its own, so that two machines agree on the bytes: it is the first one whose code runs with protobuf 6, and with 7 as
well, but it holds protobuf below 7 itself.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto" / "trinitylake.proto"
TARGET = ROOT / "python" / "trinitylake" / "definitions"
STUB = "trinitylake_pb2.pyi"
OUTPUTS = ("trinitylake_pb2.py", STUB)


def generate(directory: Path) -> dict[str, bytes]:
    """Run protoc in `directory`. Returns the content of each generated file by name."""
    import grpc_tools
    from grpc_tools import protoc

    includes = Path(grpc_tools.__file__).parent / "_proto"
    arguments = ["protoc", f"--proto_path={PROTO.parent}", f"--proto_path={includes}"]
    arguments += [f"--python_out={directory}", f"--pyi_out={directory}", str(PROTO)]
    if code := protoc.main(arguments):
        raise SystemExit(code)
    files = {name: (directory / name).read_bytes() for name in OUTPUTS}
    # The stub generator omits the type arguments of Mapping, which strict type checking refuses.
    files[STUB] = b'# mypy: disable-error-code="type-arg"\n' + files[STUB]
    return files


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only, write nothing")
    check: bool = parser.parse_args().check

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
