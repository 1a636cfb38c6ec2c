"""What all groups of a job must share, and the refusal of a group that differs. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from lighthouse.model import Hello, Identity


class Field(StrEnum):
    """What can differ. The value is the name of the field in a Hello."""

    FINGERPRINT = "fingerprint"
    GROUP_WORLD_SIZE = "group_world_size"
    PLATFORM = "platform"


@dataclass(frozen=True, kw_only=True, slots=True)
class Mismatch:
    """A group that does not belong: which field differs, what it has and what the job has.

    `running`: groups of the job live; else only its record is at stake.
    """

    field: Field
    offered: str
    wanted: str
    job: str
    running: bool

    def sentence(self) -> str:
        """For people: the field, both values and what to do."""
        has = "the running job has" if self.running else "the job on record has"
        offered, wanted = differences(self.offered, self.wanted)
        advice = _ADVICE[self.field]
        over = "" if self.running else f", or start over with `lighthouse forget ADDR {self.job}`"
        return (
            f"{self.field.value} differs: this group has {offered}, {has} {wanted}: "
            f"{advice}, or choose another job name{over}"
        )


_MAX_SHOWN_WORDS = 6
_MAX_SHOWN_CHARS = 300
_ADVICE = {
    Field.FINGERPRINT: "start it with the configuration of the others",
    Field.GROUP_WORLD_SIZE: "start it with that many ranks",
    Field.PLATFORM: "start it on the same kind of machine and software",
}


def differences(ours: str, theirs: str) -> tuple[str, str]:
    """Of two texts, the words that the other one lacks: a fingerprint may be words like `model.dim=64`.

    At most so many that a sentence remains one. Texts of one word are returned as they are.
    """
    if " " not in ours or " " not in theirs:
        return ours[:_MAX_SHOWN_CHARS], theirs[:_MAX_SHOWN_CHARS]
    return _lacking(ours, theirs), _lacking(theirs, ours)


def _lacking(text: str, other: str) -> str:
    known = set(other.split(" "))
    words = [word for word in text.split(" ") if word not in known]
    more = f" and {len(words) - _MAX_SHOWN_WORDS} more" if len(words) > _MAX_SHOWN_WORDS else ""
    return (" ".join(words[:_MAX_SHOWN_WORDS]) or "nothing else")[:_MAX_SHOWN_CHARS] + more


def identity_of(hello: Hello) -> Identity:
    """What a group says that it shares with the others."""
    return Identity(
        fingerprint=hello.fingerprint, group_world_size=hello.group_world_size, platform=hello.platform
    )


def mismatch(job: str, offered: Identity, wanted: Identity, *, running: bool) -> Mismatch | None:
    """The first field that differs. What either side leaves empty is not compared.

    Where no group lives, the number of ranks may change: all of them start from a save.
    """
    for field in Field:
        if field is Field.GROUP_WORLD_SIZE and not running:
            continue
        ours, theirs = getattr(offered, field.value), getattr(wanted, field.value)
        if ours and theirs and ours != theirs:
            return Mismatch(field=field, offered=str(ours), wanted=str(theirs), job=job, running=running)
    return None


def merge(known: Identity, offered: Identity, *, running: bool) -> Identity:
    """The job's identity after a group with this one was let in: what was empty is filled in."""
    first, second = (known, offered) if running else (offered, known)
    return Identity(
        fingerprint=first.fingerprint or second.fingerprint,
        group_world_size=first.group_world_size or second.group_world_size,
        platform=first.platform or second.platform,
    )
