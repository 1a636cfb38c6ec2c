"""How a group begins when no group of its job lives: the Lighthouse decides, a save is loaded."""

import logging
import time
from typing import TYPE_CHECKING

from lighthouse.client import ColdStart, ColdStartAnswer, SaveOffer, SavesFound
from replica.backstop import Found, SaveName, StoreError
from replica.config import NO_LIGHTHOUSE
from replica.errors import RestartError, UserError
from replica.goodput import Doing
from replica.ledger import EventKind
from replica.streams import StartCheck

if TYPE_CHECKING:
    from replica.backstop import Save
    from replica.group import ReplicaGroup

LOG = logging.getLogger("headway")
ASK_INTERVAL_S = 0.5
TELL_INTERVAL_S = 10.0


def begin_cold(group: "ReplicaGroup") -> StartCheck:
    """Find out how to begin, and load the save that all groups begin with, if there is one.

    A collective of the group. Blocks until the Lighthouse is sure that nobody has the state, and
    while saves are read. Raises RestartError or UserError where this group cannot begin.
    """
    said: SavesFound | None = None
    found, told_s = Found(), time.monotonic()
    while not _asked_to_leave(group):
        answer = group.stream.propose(said) if group.rank == 0 else None
        verdict = ColdStart(group.ranks.share([0 if answer is None else answer.verdict])[0][0])
        match verdict:
            case ColdStart.WAIT:
                said = said if found.save is None else None  # it may be gone when it is asked for again
                if answer is not None and time.monotonic() - told_s > TELL_INTERVAL_S:
                    told_s = time.monotonic()
                    LOG.info("waiting to learn how to start: %s", answer.cause)
                time.sleep(ASK_INTERVAL_S)
            case ColdStart.LOOK:
                found = _look(group)
                group.rise_above(found.highest_quorum_id)
                said = _words_of(found)
            case ColdStart.RESTORE:
                return _restore(group, _named(answer), None if found.save is None else found.save.name)
            case ColdStart.HEAL:
                group.will_heal()
                return StartCheck.GO_ON
            case ColdStart.FRESH:
                return StartCheck.GO_ON
            case ColdStart.FINISHED:
                return StartCheck.FINISHED
            case ColdStart.LOST:
                _end_where_unusable(group, found)
                return StartCheck.JOB_LOST
    return StartCheck.FINISHED


def _asked_to_leave(group: "ReplicaGroup") -> bool:
    """Whether any rank was asked to leave. Raises where the Lighthouse has counted this group out."""
    group.notices.raise_if_ended()
    return any(row[0] for row in group.ranks.share([group.notices.draining]))


def _look(group: "ReplicaGroup") -> Found:
    """What saves there are. That there are none must not be concluded from a store that fails."""
    try:
        return Found() if group.saves is None else group.saves.vault.look()
    except StoreError as error:
        raise RestartError(f"whether there are saves cannot be seen ({error}): check --backstop") from None


def _words_of(found: Found) -> SavesFound:
    offer = None
    if found.save is not None:
        name = found.save.name
        offer = SaveOffer(name=name.text, step=name.step, quorum_id=name.quorum_id)
    return SavesFound(offer=offer, highest_quorum_id=found.highest_quorum_id, unusable=found.unusable)


def _end_where_unusable(group: "ReplicaGroup", found: Found) -> None:
    """Raises UserError where there are saves and none can be loaded: new ones would take their place."""
    config = group.config
    if found.unusable:
        afresh = f"`python -m lighthouse forget ADDR {config.job}` starts the job over"
        if config.lighthouse == NO_LIGHTHOUSE:
            afresh = "move them away to start the job over"
        raise UserError(
            f"there are saves of job {config.job}, and none can be loaded (the log says why): {afresh}"
        )


def _restore(group: "ReplicaGroup", name: SaveName | None, offer: SaveName | None) -> StartCheck:
    """Load the save that the Lighthouse named, which rank 0 knows; without it, heal from those who have.

    offer: what this group had found itself; where that is named and is gone, nobody may have it.
    """
    try:
        save = None if group.saves is None else group.saves.vault.find(name)
    except StoreError as error:
        raise RestartError(f"the save that the job goes on from cannot be read ({error})") from None
    if any(row[0] for row in group.ranks.share([save is None and offer is not None and offer == name])):
        raise RestartError("the save that this group had found is gone: looking again")
    if save is None:
        group.warn("the save that the job goes on from is not to be had here: healing from the others")
        group.will_heal()
        return StartCheck.GO_ON
    _check_kind(group, save)
    began_s = time.monotonic()
    try:
        assert group.saves is not None
        with group.stopwatch.time(Doing.HEAL):
            group.saves.vault.load(save)
    except StoreError as error:
        raise RestartError(f"the save {save.name.text} could not be loaded ({error})") from None
    group.begin_at(save.name.step, save.name.quorum_id)
    _note(group, save, time.monotonic() - began_s)
    return StartCheck.GO_ON


def _named(answer: ColdStartAnswer | None) -> SaveName | None:
    """The save that the Lighthouse wants all groups to load; None on all ranks but 0."""
    return None if answer is None or answer.save is None else SaveName.parse(answer.save.name)


def _check_kind(group: "ReplicaGroup", save: "Save") -> None:
    """Refuse a save of another configuration; say where only the bits may differ from here on."""
    facts = save.manifest.facts
    if facts.fingerprint != group.fingerprint():
        raise UserError(
            f"the save {save.name.text} was made with another configuration of job {group.config.job}: "
            f"start with that one, or choose another job name"
        )
    for what, then, now in (
        ("ranks per group", facts.group_world_size, group.world_size),
        ("platform", facts.platform, group.platform()),
    ):
        if then != now and group.rank == 0:
            group.warn(
                f"saved with {what} {then}, restored with {now}: the state is the same, but from here on "
                f"its last bits may differ from those of a run that was never interrupted"
            )


def _note(group: "ReplicaGroup", save: "Save", seconds: float) -> None:
    """Check the digest where the save has one, and write down what was read."""
    want, digest = save.manifest.facts.digest, None
    if want is not None:
        digest = group.state.digest(group.world_size)
        if any(row[0] for row in group.ranks.share([group.rank == 0 and digest != want])):
            raise UserError(
                f"the state loaded from {save.name.text} has not the digest that was saved, though all its "
                f"bytes are as they were written: move that save away, and tell us"
            )
    group.last_digest = digest or ""
    LOG.info("restored step %s from %s in %.1f s", save.name.step, save.name.text, seconds)
    group.record.group_event(
        EventKind.BACKSTOP_READ,
        step=save.name.step,
        save=save.name.text,
        bytes=save.manifest.bytes,
        seconds=round(seconds, 3),
        digest=digest or None,
    )
