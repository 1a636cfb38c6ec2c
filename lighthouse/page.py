"""The status page: the status document as HTML, self-contained, without a script or a button."""

from html import escape

from lighthouse.status import Document

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .3rem; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: .2rem .8rem .2rem 0; }
th { border-bottom: 1px solid #8888; font-weight: 600; } p { margin: .3rem 0; }
.silent, .dead { color: #b3261e; } .joining, .asking { color: #9a6700; } .training { color: #1a7f37; }
@media (prefers-color-scheme: dark) { body { background: #16181c; color: #e3e3e3; } }
"""

_COLUMNS = ("group", "state", "step", "phase", "last heard", "incarnations", "address", "remarks")


def render_page(document: Document) -> str:
    """The page, which asks the browser to load it again every two seconds."""
    jobs = "".join(_job(job) for job in document["jobs"]) or "<p>No job has been seen yet.</p>"
    trouble = "" if document["store"] == "ok" else f"<p class=dead>{escape(document['store'])}</p>"
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta http-equiv=refresh content=2>"
        "<meta name=viewport content='width=device-width'><title>Lighthouse</title>"
        f"<style>{_STYLE}</style><h1>Lighthouse</h1>"
        f"<p>Up for {document['uptime_s']:.0f} s. Read by programs: "
        "<a href=/status.json>/status.json</a>, <a href=/metrics>/metrics</a>.</p>"
        f"{trouble}{jobs}</html>"
    )


def _job(job: Document) -> str:
    name = job["job"] or "torchft replicas without a job"
    current = job["quorum"]
    members = ", ".join(current["members"]) or "nobody"
    end = "" if job["finished_step"] is None else f"<p>Finished at step {job['finished_step']}.</p>"
    seen = f"{job['groups_seen']} of the {job['expected_groups']} expected groups are seen here"
    expected = f"<p>{seen}.</p>" if job["expected_groups"] else ""
    rows = "".join(_row(group) for group in job["groups"])
    heads = "".join(f"<th>{column}" for column in _COLUMNS)
    return (
        f"<h2>{escape(name)}</h2>{end}"
        f"<p>Quorum {current['id']} at step {current['step']}: {escape(members)}.</p>"
        f"<p>Next quorum: {escape(job['forming']['why'])}.</p>{expected}{_saves(job)}"
        f"<table><tr>{heads}{rows}</table>"
    )


def saves_line(job: Document) -> str:
    """What is to be said of the job's saves, or an empty text."""
    said = []
    if job["restore"] is not None:
        said.append(f"all groups load the save of step {job['restore']['step']}")
    save = job["save"]
    if save is not None and save["step"] is not None:
        size = f"{save['bytes'] / 1e6:.1f} MB in {save['seconds']:.1f} s"
        said.append(f"saved step {save['step']} {save['age_s']:.0f} s ago, {size}")
    if save is not None and save["failures"]:
        said.append(f"failed saves: {save['failures']}")
    return "; ".join(said)


def _saves(job: Document) -> str:
    said = saves_line(job)
    return f"<p>{escape(said[0].upper() + said[1:])}.</p>" if said else ""


def remarks(group: Document) -> str:
    """What is to be said of a group beside its state."""
    said = ["leaves at the end of its step"] if group["draining"] else []
    if group["suspect"]:
        said.append("stands still while others wait")
    if group["slow"]:
        said.append(f"slower than 1.5 times the median ({group['slow']:.1f})")
    return ", ".join(said)


def _row(group: Document) -> str:
    heard_s = group["last_heard_s"]
    cells = (
        group["group"],
        group["state"],
        group["step"],
        group["phase"],
        "-" if heard_s is None else f"{heard_s:.1f} s ago",
        group["incarnations"],
        group["address"],
        remarks(group),
    )
    shown = "".join(f"<td>{escape(str(cell))}" for cell in cells)
    return f"<tr class={escape(group['state'])}>{shown}"
