"""The decision: who trains together now, or what there is still to wait for.

Pure: no clock, no network, no log. The same situation gives the same answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from lighthouse.model import Key, Member, label


class Reason(StrEnum):
    """What stands in the way of a quorum. The value is the metric label and the log field."""

    NO_ASKS = "no_asks"
    WARMING_UP = "warming_up"
    EXPECTED_GROUPS = "expected_groups"
    MEMBER_NOT_ASKING = "member_not_asking"
    STRAGGLERS = "stragglers"
    MIN_REPLICAS = "min_replicas"
    NO_MAJORITY = "no_majority"
    BELOW_RECORD = "below_record"
    STORE_UNWRITABLE = "store_unwritable"


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """No quorum yet. `have` of `need` is there, and `waited_s` of at most `limit_s` has passed.

    `missing` names those that are waited for. A number that the reason does not use is 0; with
    BELOW_RECORD `have` and `need` are steps.
    """

    reason: Reason
    have: int = 0
    need: int = 0
    missing: tuple[Key, ...] = ()
    waited_s: float = 0.0
    limit_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """The quorum: at least one member, in the order of their ids."""

    members: tuple[Member, ...]


Decision = Ready | Waiting


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What the operator asked for.

    `expected_groups` 0 means that none are expected in particular. `torchft_rules` selects the
    behaviour of torchft's own lighthouse: everybody who beats is waited for.
    """

    min_replicas: int = 1
    expected_groups: int = 0
    join_timeout_s: float = 60.0
    torchft_rules: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """An open request for a quorum. `joined_s` is when this member began to wait."""

    member: Member
    joined_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Situation:
    """All that the decision depends on.

    living        everybody who was heard lately
    asks          the open requests of the living
    asked         the living that have asked before, now or earlier in this incarnation
    members       the living that are in the last quorum, by incarnation
    had_quorum    whether there is a last quorum at all
    members_lost  whether an incarnation of the last quorum is missing from `members`
    unheard       members of the last quorum of which nothing is known since this server started
    warm_until_s  until when `unheard` is waited for
    record_step   highest step of all quorums so far
    gathering     whether a server that remembers no quorum hears groups with steps behind them
    """

    asks: Mapping[Key, Ask]
    living: frozenset[Key]
    asked: frozenset[Key] = frozenset()
    members: frozenset[Key] = frozenset()
    had_quorum: bool = False
    members_lost: bool = False
    unheard: frozenset[Key] = frozenset()
    warm_until_s: float = float("-inf")
    record_step: int = 0
    gathering: bool = False


def decide(situation: Situation, rules: Rules, now_s: float) -> Decision:
    """Ready with the members of the next quorum, or Waiting with the first rule that forbids it."""
    if not situation.asks:
        return Waiting(reason=Reason.NO_ASKS, need=max(1, rules.min_replicas))
    final = _final_members(situation)
    return (
        _warming_up(situation, rules, now_s)
        or _expected_groups(situation, rules, now_s)
        or _not_asking(situation, rules, now_s)
        or _min_replicas(final, rules)
        or _no_majority(final, situation, rules)
        or _below_record(final, situation, rules)
        or Ready(members=final)
    )


def _final_members(situation: Situation) -> tuple[Member, ...]:
    """Everybody who asks; where one asks to shrink only, just those of the last quorum."""
    asks = situation.asks
    shrink = situation.had_quorum and any(ask.member.shrink_only for ask in asks.values())
    chosen = [ask.member for key, ask in asks.items() if not shrink or key in situation.members]
    return tuple(sorted(chosen, key=lambda member: member.id.text))


def _waited_s(situation: Situation, now_s: float) -> float:
    return now_s - min(ask.joined_s for ask in situation.asks.values())


def _warming_up(situation: Situation, rules: Rules, now_s: float) -> Waiting | None:
    """A server that has just started must hear the survivors before it leaves one of them out."""
    gathering = situation.gathering and not rules.torchft_rules
    if not (situation.unheard or gathering) or now_s >= situation.warm_until_s:
        return None
    return Waiting(
        reason=Reason.WARMING_UP,
        have=len(situation.asks),
        need=len(situation.asks) + len(situation.unheard),
        missing=_sorted(situation.unheard),
        waited_s=_waited_s(situation, now_s),
        limit_s=situation.warm_until_s - now_s + _waited_s(situation, now_s),
    )


def _expected_groups(situation: Situation, rules: Rules, now_s: float) -> Waiting | None:
    """The first quorum, and the first one after all have died, waits for as many as are expected."""
    if rules.torchft_rules or situation.members or len(situation.asks) >= rules.expected_groups:
        return None
    waited_s = _waited_s(situation, now_s)
    if waited_s >= rules.join_timeout_s:
        return None
    return Waiting(
        reason=Reason.EXPECTED_GROUPS,
        have=len(situation.asks),
        need=rules.expected_groups,
        missing=_sorted(situation.living - situation.asks.keys()),
        waited_s=waited_s,
        limit_s=rules.join_timeout_s,
    )


def _not_asking(situation: Situation, rules: Rules, now_s: float) -> Waiting | None:
    """Some that live do not ask: they have the join timeout, counted from the first ask."""
    missing = _awaited(situation, rules) - situation.asks.keys()
    waited_s = _waited_s(situation, now_s)
    if not missing or waited_s >= rules.join_timeout_s:
        return None
    members = missing <= situation.members
    return Waiting(
        reason=Reason.MEMBER_NOT_ASKING if members else Reason.STRAGGLERS,
        have=len(situation.asks),
        need=len(situation.asks) + len(missing),
        missing=_sorted(missing),
        waited_s=waited_s,
        limit_s=rules.join_timeout_s,
    )


def _awaited(situation: Situation, rules: Rules) -> frozenset[Key]:
    """Whom a quorum waits for.

    In our jobs the living members of the last quorum and nobody else; where there are none, the
    expected number if one was given, else everybody who beats. In the torchft-only pool everybody
    who beats, unless the last quorum is complete and asks.
    """
    if rules.torchft_rules:
        return frozenset() if _complete_again(situation) else situation.living
    if situation.members:
        return situation.members
    enough = 0 < rules.expected_groups <= len(situation.asks)
    return frozenset() if enough else situation.living


def _complete_again(situation: Situation) -> bool:
    """Whether the last quorum lost nobody and all of it asks."""
    whole = situation.had_quorum and not situation.members_lost
    return whole and situation.members <= situation.asks.keys()


def _min_replicas(final: tuple[Member, ...], rules: Rules) -> Waiting | None:
    """Counted on the list that would be issued, which is never empty."""
    need = max(1, rules.min_replicas)
    if len(final) >= need:
        return None
    return Waiting(reason=Reason.MIN_REPLICAS, have=len(final), need=need)


def _no_majority(final: tuple[Member, ...], situation: Situation, rules: Rules) -> Waiting | None:
    """More than half of the healthy, so that two halves never train apart."""
    healthy = _healthy(situation, rules)
    if 2 * len(final) > len(healthy):
        return None
    return Waiting(
        reason=Reason.NO_MAJORITY,
        have=len(final),
        need=len(healthy) // 2 + 1,
        missing=_sorted(healthy - situation.asks.keys()),
    )


def _below_record(final: tuple[Member, ...], situation: Situation, rules: Rules) -> Waiting | None:
    """Nobody may take the job back, but whoever was in the last quorum may go on from its own step.

    That is for the one whose peers took a step, and died before it had it too: it takes the same
    step again. One that has no step yet had come to heal, and has nothing to go on from.
    """
    step = max(member.step for member in final)
    first_step = min(1, situation.record_step - 1)
    veterans = any(m.id.key in situation.members and m.step >= first_step for m in final)
    if rules.torchft_rules or veterans or step >= situation.record_step:
        return None
    return Waiting(reason=Reason.BELOW_RECORD, have=step, need=situation.record_step)


def _healthy(situation: Situation, rules: Rules) -> frozenset[Key]:
    """Of whom the quorum must be a majority.

    One that only beats and never asked counts under torchft's rules, and where there is no last
    quorum to go by.
    """
    if rules.torchft_rules:
        return frozenset() if _complete_again(situation) else situation.living
    if situation.members or 0 < rules.expected_groups <= len(situation.asks):
        return situation.members | situation.asked
    return situation.living


def _sorted(keys: frozenset[Key]) -> tuple[Key, ...]:
    return tuple(sorted(keys, key=lambda key: (isinstance(key, str), key)))


def sentence(waiting: Waiting) -> str:
    """The reason for people, with its numbers and without any secret."""
    names = ", ".join(label(key) for key in waiting.missing[:8]) or "nobody in particular"
    names += f" and {len(waiting.missing) - 8} more" if len(waiting.missing) > 8 else ""
    time_spent = f"{waiting.waited_s:.1f} s of {waiting.limit_s:.1f} s"
    count = f"{waiting.have} of {waiting.need}"
    match waiting.reason:
        case Reason.NO_ASKS:
            return "nobody asks for a quorum"
        case Reason.WARMING_UP if not waiting.missing:
            return f"waiting for groups that this server may not know of: it has just started, {time_spent}"
        case Reason.WARMING_UP:
            return f"waiting for {names}: not heard since this server started, {time_spent}"
        case Reason.EXPECTED_GROUPS:
            return f"waiting for the expected groups: {count} ask, {time_spent}"
        case Reason.MEMBER_NOT_ASKING:
            return f"waiting for {names}: in the last quorum and not asking yet, {time_spent}"
        case Reason.STRAGGLERS:
            return f"waiting for {names}: alive and not asking yet, {time_spent}"
        case Reason.MIN_REPLICAS:
            return f"waiting for more replicas: {count} needed"
        case Reason.NO_MAJORITY:
            return f"waiting for a majority of the healthy: {count} needed, without {names}"
        case Reason.BELOW_RECORD:
            return (
                f"refusing to go back to step {waiting.have}: step {waiting.need} is on record, "
                "no group that has it asks"
            )
        case Reason.STORE_UNWRITABLE:
            return "waiting for the state directory: the quorum could not be written down"
