"""Finds files of the user that Python would import instead of one of Headway's packages.

`python -m MODULE` looks into the current folder first, and `python SCRIPT` into the script's. A file
there that has the name of one of our packages takes its place, and what happens then looks like
anything but that.
"""

import os
import site
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from replica.errors import UserError

# What a script that imports `replica` needs, and what the reference trainer needs.
LIBRARY = ("protos", "lighthouse", "replica")
TRAINER = (*LIBRARY, "train")

_HOME = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, kw_only=True)
class Shadow:
    """A file or folder that would be imported in place of our package of that name."""

    package: str
    path: Path


def refuse_shadows(packages: Iterable[str], folder: Path, environment: Mapping[str, str]) -> None:
    """Raises UserError if a program that looks into the folder first would miss one of our packages.

    environment: that of the program. Imports nothing.
    """
    shadow = find_shadow(packages, search_path(folder, environment))
    if shadow is not None:
        raise UserError(
            f"{shadow.path} hides Headway's package `{shadow.package}` from the programs started here: "
            "rename it, or run from a folder without it"
        )


def search_path(folder: Path, environment: Mapping[str, str]) -> list[str]:
    """Where a program looks for packages: its folder, PYTHONPATH, what is installed."""
    first = [] if environment.get("PYTHONSAFEPATH") else [str(folder)]
    named = [place or "." for place in environment.get("PYTHONPATH", "").split(os.pathsep)]
    users = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return [*first, *(named if environment.get("PYTHONPATH") else []), *users, *site.getsitepackages()]


def find_shadow(packages: Iterable[str], places: Sequence[str]) -> Shadow | None:
    """The first of the packages that is found elsewhere than our own, None if there is none.

    One that is found nowhere is no shadow: an editable installation has a finder of its own, which
    comes last.
    """
    for package in packages:
        spec = PathFinder.find_spec(package, list(places))
        path = None if spec is None else _location(spec)
        if spec is None or path is None or path.resolve() == _HOME / package:
            continue
        if spec.loader is not None or _gets_in_the_way(path, package):
            return Shadow(package=package, path=path)
    return None


def _location(spec: ModuleSpec) -> Path | None:
    """The folder of a package, the file of a module."""
    if spec.submodule_search_locations is not None:
        return next((Path(place) for place in spec.submodule_search_locations), None)
    return Path(spec.origin) if spec.origin is not None else None


def _gets_in_the_way(folder: Path, package: str) -> bool:
    """Whether a folder without an __init__.py, such as one with data, does harm.

    Our modules are still found behind it, unless it has one of the same name; but the names that
    `replica` itself offers are not.
    """
    ours = {path.name for path in (_HOME / package).glob("*.py")}
    return package == "replica" or any(path.name in ours for path in folder.glob("*.py"))
