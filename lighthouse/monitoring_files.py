"""Writes what comes with Headway for Prometheus and Grafana into a folder of the user's: `monitoring`."""

from importlib.resources import files
from pathlib import Path


class MonitoringError(ValueError):
    """The files cannot be written there. Its text is one sentence."""


def write_monitoring(folder: Path) -> list[Path]:
    """Write the files of lighthouse/monitoring/ into `folder`, which is made if need be; their paths.

    A file that is there and is the same stays. Blocks. Raises MonitoringError, and then has written nothing
    over another file's content.
    """
    contents = {
        folder / each.name: each.read_bytes() for each in files("lighthouse").joinpath("monitoring").iterdir()
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        there = [path for path in sorted(contents) if path.exists()]
        for path in there:
            if path.read_bytes() != contents[path]:
                raise MonitoringError(
                    f"{path} is there with other content: move it away, or name another folder"
                )
        for path in sorted(contents.keys() - set(there)):
            with path.open("xb") as file:
                file.write(contents[path])
    except OSError as error:
        raise MonitoringError(
            f"cannot write into {folder} ({(error.strerror or str(error)).lower()})"
        ) from None
    return sorted(contents)
