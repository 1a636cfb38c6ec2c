"""What is written when: ids and members at once, the bare step now and then, nothing twice."""

from dataclasses import replace

from lighthouse.effects import Persist
from lighthouse.journal import Journal
from lighthouse.model import JobRecord, Member, Quorum, Restore, SaveOffer, parse_replica_id

START = JobRecord(job="job", quorum_id=4, members=("job/0:a",), max_step=7)


def quorum(quorum_id: int, step: int) -> Quorum:
    return Quorum(quorum_id=quorum_id, members=(Member(id=parse_replica_id("job/0:a"), step=step),))


def test_a_new_id_is_written_before_the_quorum_comes_out() -> None:
    journal = Journal(START, step_record_s=1.0)
    write = journal.propose(quorum(5, 9), changed=True)
    assert write == Persist(record=replace(START, quorum_id=5, max_step=9))
    assert journal.flush(100.0) == [], "one write at a time"
    assert write is not None
    assert journal.written(write.record, 1.0) == (quorum(5, 9), True)
    assert journal.is_settled
    assert journal.proposed is None


def test_the_bare_step_is_written_now_and_then() -> None:
    journal = Journal(START, step_record_s=1.0)
    assert journal.propose(quorum(4, 8), changed=False) is None
    (write,) = journal.flush(0.0)
    assert journal.written(write.record, 0.0) == (None, False)
    journal.propose(quorum(4, 9), changed=False)
    assert journal.flush(0.9) == []
    assert journal.flush(1.0) == [Persist(record=replace(START, max_step=9))]


def test_anything_else_is_written_at_the_next_flush() -> None:
    journal = Journal(START, step_record_s=1.0)
    journal.written(START, 0.0)
    journal.amend(tombs=(("dead", "evicted"),))
    assert not journal.is_settled
    assert len(journal.flush(0.01)) == 1


def test_the_first_step_is_written_at_once() -> None:
    journal = Journal(replace(START, max_step=0), step_record_s=1.0)
    assert journal.propose(quorum(4, 1), changed=False) is not None


def test_a_failed_write_gives_the_quorum_up_and_keeps_the_record() -> None:
    journal = Journal(START, step_record_s=1.0)
    journal.propose(quorum(5, 9), changed=True)
    assert journal.failed() == quorum(5, 9)
    assert journal.record == START
    assert journal.failed() is None


def test_a_job_that_never_had_a_quorum_leaves_no_trace() -> None:
    journal = Journal(JobRecord(job="job", quorum_id=0), step_record_s=1.0)
    journal.amend(holders=((0, "c0ffee"),))
    assert journal.flush(100.0) == []
    journal.amend(finished_step=3)
    assert len(journal.flush(100.0)) == 1
    assert not journal.end_is_durable


def test_a_save_that_is_to_be_loaded_is_kept_until_a_quorum_has_its_step() -> None:
    restore = Restore(save=SaveOffer(name="save", step=7, quorum_id=4), told=((0, "c0ffee"),))
    journal = Journal(replace(START, members=(), restore=restore), step_record_s=1.0)
    below = journal.propose(quorum(5, 6), changed=True)
    assert below is not None
    assert below.record.restore == restore
    journal.failed()
    reached = journal.propose(quorum(5, 7), changed=True)
    assert reached is not None
    assert reached.record.restore is None
    journal.written(reached.record, 1.0)
    assert journal.record.restore is None


def test_what_is_on_disk_already_is_not_written_again() -> None:
    journal = Journal(START, step_record_s=1.0)
    journal.adopt(replace(START, max_step=3), 5.0)
    assert journal.record.max_step == 3
    assert journal.is_settled
    assert journal.flush(100.0) == []


def test_of_a_job_in_which_nothing_has_happened_nothing_is_written() -> None:
    journal = Journal(JobRecord(job="job", quorum_id=7, floor=7), step_record_s=1.0)
    journal.amend(tombs=(("dead", "evicted"),))
    assert journal.flush(100.0) == []
