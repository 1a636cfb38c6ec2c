"""Recounts a run's time and its published measures from the raw files: another way, and nothing of ours.

    python goodput_oracle.py DIR

looks at one moment after the other and says for each group what it was doing then.
"""

import json
import math
import statistics
import sys
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Raw = dict[str, Any]
TICK_S = 0.001
ENDS = ("kill", "group_evicted", "group_exited")
DEATHS = (*ENDS, "group_paused", "seen")
PHASES = ("quorum", "configure", "heal", "compute", "reduce", "vote", "commit")
SAME = {"quorum": "quorum", "configure": "reconfiguring", "heal": "healing"}


def read(path: Path) -> list[Raw]:
    *lines, _ = path.read_text().split("\n")
    return [json.loads(line) for line in lines]  # what follows the last line end is torn


class Run:
    def __init__(self, out: Path) -> None:
        self.events = sorted(read(out / "events.jsonl"), key=lambda event: event["t"])
        paths = list((out / "ledger").glob("*.jsonl"))
        self.lines = sorted((line for path in paths for line in read(path)), key=lambda line: line["t"])
        times = [one["t"] for one in (*self.events, *self.lines)]
        self.begin, self.end = min(times), max(times)
        self.jobs = [event for event in self.events if event["kind"] == "job_started"]
        self.kills = [event for event in self.events if event["kind"] == "kill"]
        told = {number for job in self.jobs for number in range(job["groups"])}
        numbers = sorted(told or {int(path.stem.removeprefix("group-")) for path in paths})
        self.reads = [event for event in self.events if event["kind"] == "backstop_read"]
        self.committed = [line for line in self.lines if line["outcome"] == "committed"]
        self.groups = {number: Group(self, number) for number in numbers}

    def taken_back(self, line: Raw) -> bool:
        return any(read["t"] > line["t"] and read["step"] <= line["step"] for read in self.reads)

    def seconds(self) -> tuple[dict[str, float], dict[str, int]]:
        """Seconds by cause, and how many stretches each has: so many ticks may the seconds be wrong."""
        found: Counter[str] = Counter()
        stretches: Counter[str] = Counter()
        for number, group in self.groups.items():
            before = ""
            for tick in range(int((self.end - self.begin) / TICK_S)):
                t = self.begin + (tick + 0.5) * TICK_S
                begun = [job for job in self.jobs if job["t"] <= t] or self.jobs[:1]
                if begun and number >= begun[-1]["groups"]:
                    continue
                cause = group.cause(t)
                found[cause] += 1
                stretches[cause] += cause != before
                before = cause
        return {cause: count * TICK_S for cause, count in found.items()}, stretches

    def measures(self) -> dict[str, float | None]:
        tried = {(line["step"], line["quorum_id"]) for line in self.lines}
        done: dict[tuple[int, int], list[Raw]] = defaultdict(list)
        for line in self.committed:
            done[line["step"], line["quorum_id"]].append(line)
        lost = {
            (line["step"], line["quorum_id"])
            for line in self.lines
            if line["outcome"] == "discarded" and line["rounds"]
        }
        deaths = len(self.kills) + sum(len(group.unclaimed()) for group in self.groups.values())
        broad = max(len(line["participants"]) for line in self.committed)
        undisturbed = [
            lines[0]["t"] - done[step - 1, quorum][0]["t"]
            for (step, quorum), lines in done.items()
            if len(lines[0]["participants"]) == broad and (step - 1, quorum) in done
        ]
        kept = {line["step"] for line in self.committed if not self.taken_back(line)}
        took = self.committed[-1]["t"] - self.committed[0]["t"]
        rate = (len(kept) - 1) * statistics.median(undisturbed) / took if undisturbed else None
        return {
            "discarded_steps_per_kill": len(lost - set(done)) / deaths if deaths else None,
            "committed_of_attempted": len(done) / len(tried),
            "token_rate_of_fault_free": rate,
            "breadth_mean": statistics.fmean(self.breadth(lines) for lines in done.values()),
        }

    def breadth(self, lines: list[Raw]) -> float:
        first = min(lines, key=lambda line: line["group"])
        took_part, alive = set(first["participants"]), set()
        for event in self.events:
            if event["t"] > first["t"]:
                break
            if event["kind"] == "job_started":
                alive = set()
            elif event["kind"] == "group_started":
                alive.add(event["group"])
            elif event["kind"] in (*ENDS, "finished") and event.get("target") != "lighthouse":
                alive.discard(event["group"])
            elif event["kind"] == "death_seen" and event["quorum_id"] <= first["quorum_id"]:
                alive -= {group for group in event["dead"] if group in self.groups}
        return len(took_part) / len(took_part | alive)


class Group:
    def __init__(self, run: Run, number: int) -> None:
        self.run, self.number = run, number
        self.lines = [line for line in run.lines if line["group"] == number]
        self.ends = [line["t"] for line in self.lines]
        self.reads = [read for read in run.reads if read["group"] == number]
        self.quorums = [e["t"] for e in run.events if e["kind"] == "quorum" and e["group"] == number]
        own = [event for event in run.events if event.get("group") == number]
        self.exits = [event["t"] for event in own if event["kind"] == "group_exited"]
        told = [*self.lines, *(event for event in own if event.get("incarnation"))]
        self.told = sorted(told, key=lambda sign: sign["t"])
        self.signs = [sign["t"] for sign in self.told]
        self.freezes = {
            event["t"] for event in own if event["kind"] == "group_paused" and self.is_frozen(event, own)
        }
        self.seen = list(self.seen_deaths())
        self.marks: list[tuple[float, str, Raw]] = []
        for event in sorted([*run.events, *self.seen], key=lambda event: event["t"]):
            if event["kind"] == "job_started" or event.get("group") == number:
                self.mark(event)

    def is_frozen(self, pause: Raw, own: list[Raw]) -> bool:
        lives = [event["incarnation"] for event in own if event["kind"] == "group_started"]
        begun = [e["incarnation"] for e in own if e["kind"] == "group_started" and e["t"] <= pause["t"]]
        later = [sign for sign in self.told if sign["t"] > pause["t"]]
        return bool(begun) and not any(sign["incarnation"] == lives[len(begun) - 1] for sign in later)

    def seen_deaths(self) -> Iterator[Raw]:
        """Of each life that did not finish: when others first missed it, after all that it had told."""
        lives = list(dict.fromkeys(sign["incarnation"] for sign in self.told))
        signs = [[sign for sign in self.told if sign["incarnation"] == life] for life in lives]
        met = [[sign["quorum_id"] for sign in own if sign.get("quorum_id")] for own in signs]
        for index, own in enumerate(signs):
            if any(sign.get("kind") == "finished" for sign in own):
                continue
            until = min((quorum for later in met[index + 1 :] for quorum in later), default=math.inf)
            missed = [
                event["t"]
                for event in self.run.events
                if event["kind"] == "death_seen" and self.number in event["dead"]
                if max(met[index], default=0) < event["quorum_id"] < until
            ]
            if missed and met[index]:
                t = max(missed[0], own[-1]["t"])
                yield {"kind": "seen", "group": self.number, "t": t, "since": own[0]["t"], "at": missed[0]}

    def unclaimed(self) -> list[Raw]:
        """The deaths that others saw and no kill explains."""
        kills = [kill["t"] for kill in self.run.kills if kill["group"] == self.number]
        return [seen for seen in self.seen if not any(seen["since"] <= t <= seen["at"] for t in kills)]

    def mark(self, event: Raw) -> None:
        last = self.marks[-1][1] if self.marks else "nothing"
        what = {"group_launched": "launched", "group_started": "up", "finished": "finished"}.get(
            event["kind"]
        )
        if event["kind"] == "group_paused" and event["t"] not in self.freezes:
            return
        if event["kind"] in DEATHS and last in ("launched", "up"):
            what = "dead"
        if last == "up" and (what in ("launched", "up") or event["kind"] == "job_started"):
            sign = self.signs[bisect_left(self.signs, event["t"]) - 1]
            self.marks.append((sign, "dead", event))
        if what == "up" and last != "launched":
            since = self.marks[-1][0] if self.marks else self.run.begin
            self.marks.append((max(since, event["t"] - event["age_s"]), "launched", event))
        if what is not None:
            self.marks.append((event["t"], what, event))

    def cause(self, t: float) -> str:
        index = bisect_right(self.marks, t, key=lambda mark: mark[0]) - 1
        if index < 0:
            return "not_provisioned"
        since, what, event = self.marks[index]
        until, follows, later = (
            self.marks[index + 1] if index + 1 < len(self.marks) else (self.run.end, "", {})
        )
        if what == "launched":
            return "restarting"
        if what == "dead":
            return "detection" if follows or t < self.exit_after(since) else "not_provisioned"
        if what == "finished":
            return "not_provisioned"
        return self.of_the_living(t, since, until, follows, later, event["incarnation"])

    def exit_after(self, since: float) -> float:
        return min((t for t in self.exits if t >= since), default=since)

    def of_the_living(self, t: float, since: float, until: float, follows: str, later: Raw, life: str) -> str:
        if any(read["t"] - read["seconds"] <= t < read["t"] for read in self.reads):
            return "healing"
        before, index = since, bisect_right(self.ends, t)
        if index > 0 and self.ends[index - 1] > since:
            before = self.ends[index - 1]
        line = self.lines[index] if index < len(self.lines) else None
        if line is None or line["incarnation"] != life or line["t"] - line["seconds"]["total"] > until:
            if follows == "finished":
                return "save" if t >= until - later.get("save_s", 0.0) else "quorum"
            first = before if before > since else min((q for q in self.quorums if q > since), default=until)
            return "ended_attempt" if t >= first else "quorum"
        spent = line["seconds"]
        begun = line["t"] - spent["total"]
        if t < begun:
            if before == since:
                return "quorum"
            if t < before + spent["save"]:
                return "save"
            return "productive" if t < before + spent["save"] + spent["script"] else "quorum"
        phases = {phase: spent[phase] for phase in PHASES}
        phases["quorum"] += spent["total"] - sum(phases.values())
        for phase, seconds in phases.items():
            begun += seconds
            if t < begun:
                return self.in_attempt(phase, index)
        return self.in_attempt("commit", index)

    def in_attempt(self, phase: str, index: int) -> str:
        line = self.lines[index]
        if phase in SAME:
            return SAME[phase]
        if line["outcome"] != "committed":
            return "productive" if phase == "compute" and self.kept(index) else "ended_attempt"
        if self.run.taken_back(line):
            return "restored_over"
        if line["healed_from"] is not None:
            return "healing"
        if line["group"] not in [owner for _, owner in line["rounds"]]:
            return "spare"
        return "reduce" if phase in ("reduce", "vote") else "productive"

    def kept(self, index: int) -> bool:
        line = self.lines[index]
        for later in self.lines[index:]:
            if (later["incarnation"], later["step"]) != (line["incarnation"], line["step"]):
                return False
            if later["outcome"] == "committed":
                return later["healed_from"] is None and not self.run.taken_back(later)
            if later["outcome"] == "discarded":
                return False
        return False


def recount(out: Path) -> Raw:
    """Seconds by cause, their sum, and the measures, of the run in this folder."""
    run = Run(out)
    seconds, stretches = run.seconds()
    whole_s = sum(seconds.values())
    return {"seconds": seconds, "stretches": stretches, "whole_s": whole_s, "measures": run.measures()}


if __name__ == "__main__":
    print(json.dumps(recount(Path(sys.argv[1]))))
