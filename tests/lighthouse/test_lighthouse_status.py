"""The status document and the page made of it: the current quorum and the forming one are two things."""

from machine_transcript import Transcript

from lighthouse.page import render_page
from lighthouse.quorum import Rules
from lighthouse.status import Document, describe_job
from lighthouse.status_words import cells, remarks, saves_line

SCENARIO = """
0.0 attach 0a
0.0 attach 1a
0.0 ask 0a 4
0.0 ask 1a 4
1.0 ask 0a 5
1.0 beat 1a
1.0 beat 2a
"""


def document(scenario: str = SCENARIO, now_s: float = 2.0) -> Document:
    player = Transcript(Rules(join_timeout_s=60.0))
    player.play(scenario)
    return describe_job(player.machine, now_s)


def test_who_trains_who_asks_who_is_missing_and_why() -> None:
    job = document()
    assert job["quorum"] == {
        "id": 1,
        "step": 4,
        "members": ["group 0", "group 1"],
        "lost": [],
        "attempt_over": False,
    }
    forming = job["forming"]
    assert (forming["reason"], forming["asking"], forming["missing"]) == (
        "member_not_asking",
        ["group 0"],
        ["group 1"],
    )
    assert (forming["waited_s"], forming["limit_s"]) == (1.0, 60.0)
    states = {group["group"]: group["state"] for group in job["groups"]}
    assert states == {0: "asking", 1: "training", 2: "joining"}
    assert job["groups"][1]["last_heard_s"] == 1.0


def test_expected_groups_that_are_not_there_are_named_where_numbers_tell() -> None:
    def missing(scenario: str) -> list[str]:
        player = Transcript(Rules(join_timeout_s=60.0, expected_groups=3))
        player.play(scenario)
        found: list[str] = describe_job(player.machine, 1.0)["expected_missing"]
        return found

    assert missing("0.0 attach 1a") == ["group 0", "group 2"]
    assert missing("0.0 attach 0a\n0.0 attach 1a\n0.0 attach 2a") == []
    assert missing("0.0 attach 1a\n0.0 attach 7a") == [], "they are not numbered from 0"


def test_incarnations_are_counted_and_the_dead_stay_visible() -> None:
    job = document(SCENARIO + "3.0 attach 1b\n3.1 cut 1b\n", now_s=3.2)
    group = job["groups"][1]
    assert (group["state"], group["incarnations"], group["last_heard_s"]) == ("dead", 2, None)
    assert (group["attached"], group["step"]) == (False, 0)


def test_a_group_that_saves_the_last_step_is_shown_as_such() -> None:
    job = document(SCENARIO + "1.5 tell 1a 5 SAVE\n")
    assert [group["phase"] for group in job["groups"]] == ["quorum", "save", "unspecified"]
    assert cells(job["groups"][1])[3] == "save"


def test_the_page_says_the_same() -> None:
    whole: Document = {"uptime_s": 3.0, "store": "ok", "jobs": [document()]}
    page = render_page(whole)
    assert "Quorum 1 at step 4: group 0, group 1." in page
    assert "waiting for group 1: in the last quorum and not asking yet, 1.0 s of 60.0 s" in page
    assert "<tr class=joining><td data-label='group'>2</td><td data-label='state'>joining</td>" in page
    assert "disk &lt;full&gt;" in render_page({**whole, "store": "disk <full>"})
    assert "No job has been seen yet" in render_page({**whole, "jobs": []})


def test_suspect_slow_and_leaving_groups_are_remarked_on() -> None:
    job = document()
    job["groups"][0] |= {"draining": True, "suspect": True, "slow": 1.72}
    said = "leaves at the end of its step, stands still while others wait, "
    said += "slower than 1.5 times the median (1.7)"
    assert remarks(job["groups"][0]) == said
    job["groups"][0]["slow_ranks"] = {"3": 0.42}
    said += ", rank 3 is slow: the others wait for it 42% of each round"
    assert remarks(job["groups"][0]) == said
    assert said in render_page({"uptime_s": 3.0, "store": "ok", "jobs": [job]})
    assert remarks(job["groups"][1]) == ""


def test_the_page_of_a_finished_job() -> None:
    job = document("0.0 attach 0a\n0.0 ask 0a 9\n0.1 goodbye 0a 10 finished")
    assert job["finished_step"] == 10
    page = render_page({"uptime_s": 3.0, "store": "ok", "jobs": [job]})
    assert "Finished at step 10." in page


def test_the_newest_save_and_the_failures() -> None:
    assert document()["save"] is None
    job = document(SCENARIO + "1.0 failed 0a 3\n", now_s=1.0)
    assert job["save"] == {"step": None, "age_s": None, "bytes": None, "seconds": None, "failures": 1}
    assert saves_line(job) == "failed saves: 1"
    job = document(SCENARIO + "1.0 saved 0a 4 1\n1.0 failed 0a 3\n1.0 failed 1a 3", now_s=3.5)
    assert job["save"] == {"step": 4, "age_s": 2.5, "bytes": 2_500_000, "seconds": 1.5, "failures": 2}
    said = "newest save: step 4, 2.5 s ago, 2.5 MB in 1.5 s; failed saves: 2"
    assert saves_line(job) == said
    page = render_page({"uptime_s": 3.0, "store": "ok", "jobs": [job]})
    assert f"<p>N{said[1:]}.</p>" in page


def test_what_all_groups_are_to_load_and_until_when() -> None:
    disaster = "2.0 cut 0a\n2.0 cut 1a\n2.0 evict 2\n2.1 attach 0b\n2.2 propose 0b 3 1\n"
    job = document(SCENARIO + disaster, now_s=2.3)
    assert job["restore"] == {"save": "save-3-1", "step": 3}
    assert (job["quorum"]["step"], job["quorum"]["members"]) == (3, [])
    page = render_page({"uptime_s": 3.0, "store": "ok", "jobs": [job]})
    assert "<p>All groups load the save of step 3.</p>" in page
    job = document(SCENARIO + disaster + "2.4 ask 0b 3", now_s=2.5)
    assert (job["restore"], job["quorum"]["id"]) == (None, 2)
