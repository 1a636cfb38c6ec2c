"""Write the Python stubs of the .proto files beside them: `python -m protos.generate`.

With `--check` nothing is written, and the exit code is 1 when a stub differs from what its
.proto file gives. Needs grpcio-tools, which the `dev` extra installs.
"""

import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ("protos/torchft.proto", "protos/lighthouse.proto")


def generate(into: Path) -> list[Path]:
    """Generate all stubs below `into` and return their paths relative to it."""
    import grpc_tools

    builtin = Path(grpc_tools.__file__).parent / "_proto"
    arguments = ["protoc", f"-I{ROOT}", f"-I{builtin}"]
    arguments += [f"--python_out={into}", f"--pyi_out={into}", f"--grpc_python_out={into}"]
    if protoc.main([*arguments, *PROTOS]) != 0:
        raise SystemExit("protoc failed: see its message above")
    return sorted(path.relative_to(into) for path in into.glob("protos/*_pb2*"))


def stale_stubs() -> list[Path]:
    """Paths of checked-in stubs that differ from what their .proto file gives."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        return [
            path
            for path in generate(fresh)
            if not (ROOT / path).exists() or (ROOT / path).read_bytes() != (fresh / path).read_bytes()
        ]


def main() -> int:
    """Generate, or with `--check` compare. Returns the exit code."""
    if sys.argv[1:] != ["--check"]:
        generate(ROOT)
        return 0
    stale = stale_stubs()
    for path in stale:
        print(f"{path} is out of date: run `python -m protos.generate`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
