"""Names of saves at a store: step, quorum id and incarnation in one word, and their order. Pure."""

import re
from dataclasses import dataclass
from typing import Self

MAX_NUMBER = 10**18 - 1
PARTIAL = ".partial-"
TRASH = ".trash-"
_NAME = re.compile(r"step-([0-9]{12,18})-quorum-([0-9]{12,18})-([0-9a-f]{8})")


@dataclass(frozen=True, kw_only=True)
class SaveName:
    """What a save is called: the step it holds, the quorum of its writer, and the writer's incarnation.

    step: number of committed steps. quorum_id: of the quorum that committed the last of them.
    incarnation: 8 hexadecimal digits. Raises ValueError for what has no name.
    """

    step: int
    quorum_id: int
    incarnation: str

    def __post_init__(self) -> None:
        if not 0 <= self.step <= MAX_NUMBER or not 0 <= self.quorum_id <= MAX_NUMBER:
            raise ValueError(
                f"step {self.step} or quorum id {self.quorum_id} is not between 0 and {MAX_NUMBER}"
            )
        if not re.fullmatch("[0-9a-f]{8}", self.incarnation):
            raise ValueError(f"incarnation {self.incarnation[:80]!r} is not 8 hexadecimal digits")

    @property
    def text(self) -> str:
        """The folder of the save."""
        return f"step-{self.step:012d}-quorum-{self.quorum_id:012d}-{self.incarnation}"

    @property
    def partial(self) -> str:
        """The folder in which the save is written where a folder can be renamed."""
        return PARTIAL + self.text

    @property
    def order(self) -> tuple[int, int]:
        """What makes one save newer than another: quorum ids rise over the life of a job."""
        return (self.quorum_id, self.step)

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The name of which `text` is the spelling, or None."""
        found = _NAME.fullmatch(text)
        name = cls(step=int(found[1]), quorum_id=int(found[2]), incarnation=found[3]) if found else None
        return name if name is not None and name.text == text else None

    @classmethod
    def parse_partial(cls, folder: str) -> Self | None:
        """The name of the save that is written in this folder, or None."""
        return cls.parse(folder.removeprefix(PARTIAL)) if folder.startswith(PARTIAL) else None


def trash_name(folder: str) -> str:
    """What the folder of a save or of a partial one is renamed to before it is removed."""
    return TRASH + folder.lstrip(".")
