"""The machine and its record: what outlives the server, and what a full disk stops."""

from test_lighthouse_machine import check


def test_after_a_restart_ids_rise_and_survivors_are_heard_first() -> None:
    check(
        """
        0.0 beat 0a 1a 2a
        0.0 ask 0a 7
        0.0 ask 1a 7
        0.0 ask 2a 7
          => on disk: quorum 1, step 7
          => quorum 1 [0 1 2] step 7, to 0a 1a 2a
        10.0 restart
        10.1 ask 1a 8
        10.2 ask 0a 8
        10.2 why
          => warming_up: waiting for group 2: not heard since this server started, 0.1 s of 4.9 s
        10.3 ask 2a 8
          => on disk: quorum 2, step 8
          => quorum 2 [0 1 2] step 8, to 0a 1a 2a
        20.0 restart
        20.1 ask 0a 9
        20.1 beat 2b
        20.1 why
          => warming_up: waiting for group 1, group 2: not heard since this server started, 0.0 s of 4.9 s
        20.1 attach 2b
          => 2b starts: HEAL, step 8
        20.2 ask 1a 9
          => on disk: quorum 3, step 9
          => quorum 3 [0 1] step 9, to 0a 1a
        30.0 restart
        30.1 ask 0a 10
        34.9 beat 0a
        34.9 tick
          => quorum_waiting warming_up
        35.0 tick
          => on disk: quorum 4, step 10
          => quorum 4 [0] step 10, to 0a
        """
    )


def test_a_full_disk_stops_new_quorums_and_forgets_nothing() -> None:
    check(
        """
        0.0 ask 0a 1
          => on disk: quorum 1, step 1
          => quorum 1 [0] step 1, to 0a
        1.0 disk full
        1.0 ask 0a 1 fail
          => not written
        1.0 why
          => store_unwritable: waiting for the state directory: the quorum could not be written down
        2.5 tick
          => not written
          => quorum_waiting store_unwritable
        3.0 disk ok
        3.0 tick
          => on disk: quorum 2, step 1
          => quorum 2 [0] step 1, to 0a
        """
    )


def test_an_eviction_that_could_not_be_written_is_written_as_soon_as_there_is_room() -> None:
    check(
        """
        0.0 attach 0a
          => 0a starts: FRESH, step 0
        0.0 ask 0a 1
          => on disk: quorum 1, step 1
          => quorum 1 [0] step 1, to 0a
        1.0 disk full
        1.0 evict 0
          => not written
          => told 0a: EVICTED: the operator
          => stream of 0a closed: evicted
          => replica_gone group 0 evicted
        1.1 disk ok
        1.1 tick
          => on disk: quorum 1, step 1
        1.2 restart
        1.3 attach 0a
          => 0a refused: evicted
        """
    )


def test_a_step_on_record_that_nobody_has_means_restore_also_after_a_restart() -> None:
    check(
        """
        0.0 ask 0a 0
          => on disk: quorum 1, step 0
          => quorum 1 [0] step 0, to 0a
        0.1 ask 0a 1
          => on disk: quorum 1, step 1
          => quorum 1 [0] step 1, to 0a
        5.0 restart
        5.0 attach 0b
          => 0b starts: RESTORE, step 1
        """
    )


def test_a_finished_job_says_so_for_ever() -> None:
    check(
        """
        0.0 attach 0a
          => 0a starts: FRESH, step 0
        0.0 ask 0a 9
          => on disk: quorum 1, step 9
          => quorum 1 [0] step 9, to 0a
        0.1 goodbye 0a 10 finished
          => replica_gone group 0 finished
          => job_finished
          => on disk: quorum 1, step 10, finished at 10
        0.1 cut 0a
        0.2 attach 1a
          => 1a starts: FINISHED, step 10
        9.0 restart
        9.1 attach 2a
          => 2a starts: FINISHED, step 10
        """
    )


def test_the_first_group_that_steps_makes_later_ones_heal() -> None:
    player = check(
        """
        0.0 ask 0a 0
          => on disk: quorum 1, step 0
          => quorum 1 [0] step 0, to 0a
        """
    )
    assert player.disk.max_step == 0
    player.play("0.1 ask 0a 1")
    assert player.disk.max_step == 1
