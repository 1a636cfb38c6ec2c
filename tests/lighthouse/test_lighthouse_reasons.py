"""One golden transcript for each reason to wait: what an operator sees, and how it ends."""

import textwrap

import pytest
from machine_transcript import Transcript

from lighthouse.quorum import Reason, Rules

RULES: dict[Reason, Rules] = {
    Reason.EXPECTED_GROUPS: Rules(expected_groups=2, join_timeout_s=10.0),
    Reason.MIN_REPLICAS: Rules(min_replicas=2, join_timeout_s=10.0),
}

GOLDEN: dict[Reason, str] = {
    Reason.NO_ASKS: """
        0.0 beat 0a
        0.0 why
          => no_asks: nobody asks for a quorum
        0.1 ask 0a 3
          => on disk: quorum 1, step 3
          => quorum 1 [0] step 3, to 0a
    """,
    Reason.WARMING_UP: """
        0.0 ask 0a 3
          => on disk: quorum 1, step 3
          => quorum 1 [0] step 3, to 0a
        9.0 restart
        9.0 ask 1a 3
        9.5 why
          => warming_up: waiting for group 0: not heard since this server started, 0.5 s of 5.0 s
        13.9 beat 1a
        13.9 tick
          => on disk: quorum 1, step 3
          => quorum_waiting warming_up
        14.0 tick
          => on disk: quorum 2, step 3
          => quorum 2 [1] step 3, to 1a
    """,
    Reason.EXPECTED_GROUPS: """
        0.0 ask 0a 0
        3.0 beat 0a
        6.0 beat 0a
        9.0 beat 0a
        9.0 tick
          => quorum_waiting expected_groups
        9.0 why
          => expected_groups: waiting for the expected groups: 1 of 2 ask, 9.0 s of 10.0 s
        10.0 tick
          => on disk: quorum 1, step 0
          => quorum 1 [0] step 0, to 0a
          => fewer_groups_than_expected
    """,
    Reason.MEMBER_NOT_ASKING: """
        0.0 beat 0a 1a
        0.0 ask 0a 3
        0.0 ask 1a 3
          => on disk: quorum 1, step 3
          => quorum 1 [0 1] step 3, to 0a 1a
        1.0 ask 0a 4
        2.0 why
          => member_not_asking: waiting for group 1: in the last quorum and not asking yet, 1.0 s of 60.0 s
        2.1 ask 1a 4
          => quorum 1 [0 1] step 4, to 0a 1a
    """,
    Reason.STRAGGLERS: """
        0.0 beat 1a
        0.0 ask 0a 0
        1.0 why
          => stragglers: waiting for group 1: alive and not asking yet, 1.0 s of 60.0 s
        1.1 ask 1a 0
          => on disk: quorum 1, step 0
          => quorum 1 [0 1] step 0, to 0a 1a
    """,
    Reason.MIN_REPLICAS: """
        0.0 ask 0a 0
        0.0 why
          => min_replicas: waiting for more replicas: 1 of 2 needed
        0.1 ask 1a 0
          => on disk: quorum 1, step 0
          => quorum 1 [0 1] step 0, to 0a 1a
    """,
    Reason.NO_MAJORITY: """
        0.0 beat 0a 1a 2a
        0.0 ask 0a 3
        0.0 ask 1a 3
        0.0 ask 2a 3
          => on disk: quorum 1, step 3
          => quorum 1 [0 1 2] step 3, to 0a 1a 2a
        4.0 ask 0a 4
        4.0 beat 1a 2a
        63.9 beat 0a 1a 2a
        64.0 why
          => no_majority: waiting for a majority of the healthy: 1 of 2 needed, without group 1, group 2
        64.1 ask 2a 4
        64.2 tick
          => on disk: quorum 2, step 4
          => quorum 2 [0 2] step 4, to 0a 2a
    """,
    Reason.BELOW_RECORD: """
        0.0 ask 0a 8
          => on disk: quorum 1, step 8
          => quorum 1 [0] step 8, to 0a
        1.0 ask 0b 0
          => replica_gone group 0 superseded
        1.0 why
          => below_record: refusing to go back to step 0: step 8 is on record, no group that has it asks
        1.1 ask 1a 8
          => on disk: quorum 2, step 8
          => quorum 2 [0 1] step 8, to 0b 1a
    """,
    Reason.STORE_UNWRITABLE: """
        0.0 disk full
        0.0 ask 0a 0
          => not written
        0.1 why
          => store_unwritable: waiting for the state directory: the quorum could not be written down
        0.2 tick
          => not written
        0.3 disk ok
        0.3 tick
          => on disk: quorum 1, step 0
          => quorum 1 [0] step 0, to 0a
    """,
}


@pytest.mark.parametrize("reason", Reason)
def test_each_reason_has_its_transcript(reason: Reason) -> None:
    wanted = textwrap.dedent(GOLDEN[reason]).strip()
    player = Transcript(RULES.get(reason, Rules(join_timeout_s=60.0)))
    assert player.play(wanted) == wanted
    assert f"=> {reason.value}: " in wanted


def test_only_the_newest_state_may_go_on_but_a_member_may_take_its_last_step_again() -> None:
    scenario = textwrap.dedent(
        """
        0.0 beat 0a 1a 2a
        0.0 ask 0a 8
        0.0 ask 1a 8
        0.0 ask 2a 8
          => on disk: quorum 1, step 8
          => quorum 1 [0 1 2] step 8, to 0a 1a 2a
        1.0 ask 0a 9
        1.0 ask 1a 8 fail
        1.0 ask 2b 0
          => replica_gone group 2 superseded
          => on disk: quorum 2, step 9
          => quorum 2 [0 1 2] step 9, to 0a 1a 2b
        7.0 beat 1a 2b
        7.0 tick
          => replica_gone group 0 silent
        7.0 ask 2b 0 fail
        7.1 evict 1
          => on disk: quorum 2, step 9
          => replica_gone group 1 evicted
        7.1 why
          => below_record: refusing to go back to step 0: step 9 is on record, no group that has it asks
        """
    ).strip()
    assert Transcript(Rules(join_timeout_s=60.0)).play(scenario) == scenario
    going_on = scenario[: scenario.index("7.0 ask 2b")] + textwrap.dedent(
        """\
        7.0 ask 2b 0 fail
        7.1 ask 1a 8 fail
          => on disk: quorum 3, step 9
          => quorum 3 [1 2] step 8, to 1a 2b"""
    )
    assert Transcript(Rules(join_timeout_s=60.0)).play(going_on) == going_on
