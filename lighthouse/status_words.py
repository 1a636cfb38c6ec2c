"""What the status says in words, the same on the page and on a terminal. Pure: the document goes in."""

from lighthouse.quorum import Reason
from lighthouse.status import Document

# A rank says about once a second that it runs.
SILENT_RANK_S = 3.0
DEATHS_SHOWN = 3


def quorum_line(job: Document) -> str:
    """The quorum that trains now."""
    current = job["quorum"]
    if not current["members"]:
        return "there has been no quorum yet"
    gone = current.get("lost", [])
    lost = f", of which {_and(gone)} {'is' if len(gone) == 1 else 'are'} gone" if gone else ""
    over = "; its attempt was ended early" if current["attempt_over"] else ""
    return f"quorum {current['id']} at step {current['step']}: {', '.join(current['members'])}{lost}{over}"


def forming_line(job: Document) -> str:
    """What the next quorum waits for, and the rule that holds it up; for a finished job the end."""
    if job["finished_step"] is not None:
        return f"finished at step {job['finished_step']}"
    forming = job["forming"]
    if forming["reason"] == Reason.NO_ASKS:
        return "next quorum: nobody asks for one"
    asking = ", ".join(forming["asking"]) or "nobody"
    return f"next quorum: {forming['why']} (rule {forming['reason']}; asking: {asking})"


def expected_line(job: Document) -> str:
    """How many of the expected groups are here, or an empty text where none are expected."""
    if not job["expected_groups"]:
        return ""
    missing = job.get("expected_missing") if job["finished_step"] is None else []
    here = f"{job['groups_seen']} of {job['expected_groups']} expected groups are seen here"
    return f"{here}; missing: {', '.join(missing)}" if missing else here


def saves_line(job: Document) -> str:
    """What is to be said of the job's saves, or an empty text."""
    said = []
    if job["restore"] is not None:
        said.append(f"all groups load the save of step {job['restore']['step']}")
    save = job["save"]
    if save is not None and save["step"] is not None:
        size = f"{save['bytes'] / 1e6:.1f} MB in {save['seconds']:.1f} s"
        said.append(f"newest save: step {save['step']}, {ago(save['age_s'])}, {size}")
    if save is not None and save["failures"]:
        said.append(f"failed saves: {save['failures']}")
    return "; ".join(said)


def losses_line(job: Document) -> str:
    """How incarnations ended and attempts were cut short since this server started, or an empty text."""
    ends = [f"{count} {cause.replace('_', ' ')}" for cause, count in job["gone"].items() if count]
    said = [f"incarnations that ended: {', '.join(ends)}"] if ends else []
    if job["attempts_over"]:
        said.append(f"attempts ended early: {job['attempts_over']}")
    return "; ".join(said)


def deaths_line(job: Document) -> str:
    """What the last deaths have cost, or an empty text."""
    said = [_death(death) for death in job.get("deaths", [])[-DEATHS_SHOWN:]]
    return f"last deaths: {'; '.join(reversed(said))}" if said else ""


def _death(death: Document) -> str:
    where = f"group {death['group']} at step {death['step']} ({death['cause'].replace('_', ' ')})"
    if death["back_s"] is None:
        return f"{where}, {ago(death['ago_s'])}, not back yet"
    return f"{where}, back after {death['back_s']:.1f} s, cost all groups {death['lost_s']:.1f} s"


def goodput_line(job: Document) -> str:
    """The share of time that was productive and the largest losses, or an empty text where untold."""
    goodput = job.get("goodput")
    if not goodput or goodput.get("ratio") is None:
        return ""
    lost = sorted((goodput.get("lost_s_by_cause") or {}).items(), key=lambda one: -one[1])
    most = [f"{cause.replace('_', ' ')} {seconds:.0f} s" for cause, seconds in lost[:3] if seconds >= 0.5]
    return f"goodput {goodput['ratio']:.1%}" + (f", lost most to {', '.join(most)}" if most else "")


def pace_line(job: Document) -> str:
    """How long a step usually takes, or an empty text before the first."""
    typical_s = job["typical_step_s"]
    return "" if typical_s is None else f"a step takes {typical_s:.2f} s"


def lines(job: Document) -> list[str]:
    """All that there is to say of a job beside its groups, a sentence each, the most urgent first."""
    said = (
        quorum_line(job),
        forming_line(job),
        expected_line(job),
        goodput_line(job),
        pace_line(job),
        saves_line(job),
        losses_line(job),
        deaths_line(job),
    )
    return [line for line in said if line]


def remarks(group: Document) -> str:
    """What is to be said of a group beside its state."""
    said = ["leaves at the end of its step"] if group["draining"] and group.get("gone_s") is None else []
    if group["suspect"]:
        said.append("stands still while others wait")
    if group["slow"]:
        said.append(f"slower than 1.5 times the median ({group['slow']:.1f})")
    for rank, lag in group.get("slow_ranks", {}).items():
        said.append(f"rank {rank} is slow: the others wait for it {lag:.0%} of each round")
    if group["broken_ranks"]:
        said.append(f"lost the stream of {_ranks(group['broken_ranks'])}")
    for rank, age_s in group["rank_pulse_s"].items():
        if age_s >= SILENT_RANK_S:
            said.append(f"rank {rank} says nothing for {age_s:.1f} s")
    return ", ".join(said)


def _and(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


COLUMNS = ("group", "state", "step", "phase", "last pulse", "incarnation", "goodput", "remarks")


def cells(group: Document) -> tuple[str, ...]:
    """The row of a group, in the order of COLUMNS."""
    gone_s = group.get("gone_s")
    said_s = group["last_heard_s"] if gone_s is None else gone_s
    return (
        str(group["group"]),
        str(group["state"]),
        str(group["step"]),
        str(group["phase"]),
        "-" if said_s is None else ago(said_s),
        str(group["incarnations"]),
        _ratio(group.get("goodput")),
        remarks(group),
    )


def _ratio(goodput: Document | None) -> str:
    ratio = goodput.get("ratio") if goodput else None
    return "-" if ratio is None else f"{ratio:.1%}"


def job_name(job: Document) -> str:
    """The name of a job; torchft replicas have none."""
    return job["job"] or "torchft replicas without a job"


def ago(age_s: float) -> str:
    """How long ago something was."""
    if age_s < 60:
        return f"{age_s:.1f} s ago"
    if age_s < 7200:
        return f"{age_s / 60:.0f} min ago"
    return f"{age_s / 3600:.1f} h ago"
