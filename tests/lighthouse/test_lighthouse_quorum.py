"""The decision: each reason once, the rules as properties, and torchft's own rules for its pool."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lighthouse.model import Key, Member, parse_replica_id
from lighthouse.quorum import Ask, Ready, Reason, Rules, Situation, Waiting, decide, sentence

OURS = Rules(join_timeout_s=60.0)
TORCHFT = Rules(join_timeout_s=60.0, torchft_rules=True)


def asks(*groups: int, joined_s: float = 0.0, shrink_only: bool = False) -> dict[Key, Ask]:
    return {
        group: Ask(
            member=Member(id=parse_replica_id(f"job/{group}:u"), shrink_only=shrink_only), joined_s=joined_s
        )
        for group in groups
    }


def situation(
    *, asking: Iterable[int], living: Iterable[int], members: Iterable[int] = (), **more: object
) -> Situation:
    """Those who ask also live; `members` names the living ones of the last quorum."""
    asking, members = tuple(asking), frozenset(members)
    base = Situation(
        asks=asks(*asking),
        living=frozenset(living) | frozenset(asking),
        asked=frozenset(asking) | members,
        members=members,
        had_quorum=bool(members),
    )
    return replace(base, **more)  # type: ignore[arg-type]


def groups_of(decision: Ready | Waiting) -> list[Key]:
    assert isinstance(decision, Ready), decision
    return [member.id.key for member in decision.members]


def reason_of(decision: Ready | Waiting) -> Reason:
    assert isinstance(decision, Waiting), decision
    return decision.reason


def test_nobody_asks() -> None:
    assert reason_of(decide(situation(asking=(), living=(0, 1)), OURS, 0.0)) is Reason.NO_ASKS


def test_a_lone_group_need_not_wait() -> None:
    assert groups_of(decide(situation(asking=[0], living=()), OURS, 0.0)) == [0]


def test_all_living_members_ask_and_a_joiner_that_only_beats_is_not_waited_for() -> None:
    s = situation(asking=(0, 1), living=(0, 1, 2, 3, 4, 5), members=(0, 1))
    assert groups_of(decide(s, OURS, 0.0)) == [0, 1]


def test_a_joiner_that_asks_is_taken_along() -> None:
    s = situation(asking=(0, 1, 7), living=(), members=(0, 1))
    assert groups_of(decide(s, OURS, 0.0)) == [0, 1, 7]


def test_a_living_member_that_does_not_ask_is_waited_for_until_the_join_timeout() -> None:
    s = situation(asking=(0, 1), living=(0, 1, 2), members=(0, 1, 2))
    waiting = decide(s, OURS, 3.0)
    assert waiting == Waiting(
        reason=Reason.MEMBER_NOT_ASKING, have=2, need=3, missing=(2,), waited_s=3.0, limit_s=60.0
    )
    assert groups_of(decide(s, OURS, 60.0)) == [0, 1]


def test_without_a_majority_there_is_no_quorum_however_long_it_takes() -> None:
    s = situation(asking=[0], living=(0, 1, 2), members=(0, 1, 2))
    waiting = decide(s, OURS, 1e6)
    assert isinstance(waiting, Waiting)
    assert (waiting.reason, waiting.have, waiting.need) == (Reason.NO_MAJORITY, 1, 2)
    assert waiting.missing == (1, 2)


def test_half_is_no_majority() -> None:
    s = situation(asking=(0, 1), living=(0, 1, 2, 3), members=(0, 1, 2, 3))
    assert reason_of(decide(s, OURS, 1e6)) is Reason.NO_MAJORITY


def test_too_few_replicas_on_the_fast_path_too() -> None:
    s = situation(asking=[0], living=(), members=[0])
    waiting = decide(s, replace(OURS, min_replicas=2), 1e6)
    assert waiting == Waiting(reason=Reason.MIN_REPLICAS, have=1, need=2)


def test_expected_groups_hold_up_the_first_quorum_until_the_join_timeout() -> None:
    rules = replace(OURS, expected_groups=3)
    waiting = decide(situation(asking=(0, 1), living=(0, 1)), rules, 59.0)
    assert isinstance(waiting, Waiting)
    assert (waiting.reason, waiting.have, waiting.need) == (Reason.EXPECTED_GROUPS, 2, 3)
    assert groups_of(decide(situation(asking=(0, 1), living=(0, 1)), rules, 60.0)) == [0, 1]
    assert groups_of(decide(situation(asking=(0, 1, 2), living=(3, 4, 5, 6)), rules, 0.0)) == [0, 1, 2]


def test_expected_groups_hold_up_no_later_quorum() -> None:
    s = situation(asking=[0], living=(), members=[0])
    assert groups_of(decide(s, replace(OURS, expected_groups=3), 0.0)) == [0]


def test_the_first_quorum_waits_for_whoever_beats() -> None:
    s = situation(asking=(0, 1), living=(0, 1, 2))
    waiting = decide(s, OURS, 1.0)
    assert isinstance(waiting, Waiting)
    assert (waiting.reason, waiting.missing) == (Reason.STRAGGLERS, (2,))
    assert groups_of(decide(s, OURS, 60.0)) == [0, 1]


def test_warming_up_waits_for_members_on_record_that_were_not_heard() -> None:
    s = situation(asking=[0], living=(), members=[0], unheard=frozenset([1]), warm_until_s=5.0)
    waiting = decide(s, OURS, 1.0)
    assert isinstance(waiting, Waiting)
    assert (waiting.reason, waiting.missing, waiting.limit_s) == (Reason.WARMING_UP, (1,), 5.0)
    assert groups_of(decide(s, OURS, 5.0)) == [0]
    assert groups_of(decide(replace(s, unheard=frozenset()), OURS, 1.0)) == [0]


def test_shrink_only_keeps_newcomers_out_and_never_leaves_nobody() -> None:
    s = situation(asking=(), living=(), members=(0, 1), asks=asks(0, 1, 7, shrink_only=True))
    s = replace(s, living=frozenset([0, 1, 7]))
    assert groups_of(decide(s, OURS, 0.0)) == [0, 1]
    alone = replace(s, asks=asks(7, shrink_only=True), living=frozenset([7]), members=frozenset())
    for rules in (OURS, TORCHFT):
        assert reason_of(decide(alone, rules, 1e6)) is Reason.MIN_REPLICAS


def test_torchft_rules_wait_for_everybody_who_beats_after_a_loss() -> None:
    s = situation(asking=(0, 1), living=(0, 1, 7), members=(0, 1), members_lost=True)
    assert reason_of(decide(s, TORCHFT, 0.0)) is Reason.STRAGGLERS
    assert groups_of(decide(s, TORCHFT, 60.0)) == [0, 1]


def test_torchft_rules_go_fast_when_the_last_quorum_is_complete() -> None:
    s = situation(asking=(0, 1), living=(0, 1, 7, 8, 9), members=(0, 1))
    assert groups_of(decide(s, TORCHFT, 0.0)) == [0, 1]
    assert reason_of(decide(s, replace(TORCHFT, min_replicas=3), 0.0)) is Reason.MIN_REPLICAS


@st.composite
def situations(draw: st.DrawFn) -> tuple[Situation, Rules, float]:
    everybody = st.frozensets(st.integers(0, 7))
    living = draw(everybody)
    asking = draw(everybody) & living
    members = draw(everybody) & living
    steps = {group: draw(st.integers(0, 3)) for group in asking}
    waiting = asks(*asking, joined_s=draw(st.floats(0, 100)), shrink_only=draw(st.booleans()))
    s = Situation(
        asks={
            key: replace(ask, member=replace(ask.member, step=steps[int(key)]))
            for key, ask in waiting.items()
        },
        living=living,
        asked=asking | (draw(everybody) & living),
        members=members,
        had_quorum=bool(members) or draw(st.booleans()),
        members_lost=draw(st.booleans()),
        unheard=draw(everybody) - asking,
        warm_until_s=draw(st.floats(0, 200)),
        record_step=draw(st.integers(0, 3)),
        gathering=draw(st.booleans()),
    )
    rules = Rules(
        min_replicas=draw(st.integers(1, 4)),
        expected_groups=draw(st.integers(0, 5)),
        join_timeout_s=draw(st.floats(0, 100)),
        torchft_rules=draw(st.booleans()),
    )
    return s, rules, draw(st.floats(100, 300))


@given(situations())
def test_what_holds_for_every_quorum(case: tuple[Situation, Rules, float]) -> None:
    s, rules, now_s = case
    decision = decide(s, rules, now_s)
    if isinstance(decision, Waiting):
        assert "\n" not in sentence(decision)
        return
    chosen = {member.id.key for member in decision.members}
    assert chosen
    assert chosen <= s.asks.keys() <= s.living
    assert len(chosen) >= rules.min_replicas
    assert [m.id.text for m in decision.members] == sorted(m.id.text for m in decision.members)
    assert now_s >= s.warm_until_s or not s.unheard
    veterans = any(m.id.key in s.members and m.step > 0 for m in decision.members)
    highest = max(member.step for member in decision.members)
    assert rules.torchft_rules or veterans or highest >= s.record_step or s.record_step <= 1
    if not rules.torchft_rules:
        assert 2 * len(chosen) > len(s.members)
        waited_s = now_s - min(ask.joined_s for ask in s.asks.values())
        assert s.members <= s.asks.keys() or waited_s >= rules.join_timeout_s


@given(situations())
def test_time_alone_ends_all_waiting_but_for_numbers_and_votes(case: tuple[Situation, Rules, float]) -> None:
    s, rules, _ = case
    decision = decide(s, rules, 1e9)
    if isinstance(decision, Waiting):
        forbidden = (Reason.NO_ASKS, Reason.MIN_REPLICAS, Reason.NO_MAJORITY, Reason.BELOW_RECORD)
        assert decision.reason in forbidden


@given(situations())
def test_one_more_ask_never_spoils_a_quorum_of_ours(case: tuple[Situation, Rules, float]) -> None:
    s, rules, now_s = case
    rules = replace(rules, torchft_rules=False)
    s = replace(
        s, asks={key: replace(a, member=replace(a.member, shrink_only=False)) for key, a in s.asks.items()}
    )
    if isinstance(decide(s, rules, now_s), Ready):
        joined_s = min(ask.joined_s for ask in s.asks.values())
        more = replace(
            s,
            asks={**s.asks, **asks(9, joined_s=joined_s)},
            living=s.living | {9},
            asked=s.asked | {9},
        )
        assert 9 in groups_of(decide(more, rules, now_s))


@pytest.mark.parametrize("reason", Reason)
def test_each_reason_has_a_sentence_with_its_numbers(reason: Reason) -> None:
    waiting = Waiting(reason=reason, have=1, need=3, missing=(2, "ddp_1:secret"), waited_s=3.14, limit_s=10.0)
    text = sentence(waiting)
    assert "secret" not in text
    parts = ("1 of 3", "3.1 s of 10.0 s", "nobody asks", "state directory", "to step 1: step 3 is on record")
    assert any(part in text for part in parts)


def test_long_lists_of_the_missing_are_cut() -> None:
    waiting = Waiting(reason=Reason.MEMBER_NOT_ASKING, missing=tuple(range(20)))
    assert "group 7 and 12 more" in sentence(waiting)
