"""The status page: the status document as HTML, self-contained, without a script or a button."""

from html import escape

from lighthouse.status import Document
from lighthouse.status_words import COLUMNS, cells, job_name, lines

# On a phone each group is a card: a cell a line, with the name of its column before it.
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; }
body { background: #fff; color: #1f2328; overflow-wrap: anywhere; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .3rem; } a { color: inherit; }
table { border-collapse: collapse; width: 100%; margin-top: .6rem; }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; overflow-wrap: normal; vertical-align: top; }
th { border-bottom: 1px solid #8888; font-weight: 600; } p { margin: .3rem 0; }
.silent, .dead, .evicted { color: #b3261e; } .joining, .asking { color: #9a6700; }
.training, .finished { color: #1a7f37; }
@media (max-width: 40rem) {
  body { margin: 1rem auto; } tr.heads { display: none; }
  tr { display: block; border-top: 1px solid #8888; padding: .4rem 0; }
  td { display: flex; padding: 0; gap: .8rem; } td:empty { display: none; }
  td::before { content: attr(data-label); flex: 0 0 7rem; opacity: .7; }
}
@media (prefers-color-scheme: dark) {
  body { background: #16181c; color: #e3e3e3; }
  .silent, .dead, .evicted { color: #ff8a80; } .joining, .asking { color: #e3b341; }
  .training, .finished { color: #57c96f; }
}
"""


def render_page(document: Document) -> str:
    """The page, which asks the browser to load it again every two seconds."""
    jobs = "".join(_job(job) for job in document["jobs"]) or "<p>No job has been seen yet.</p>"
    trouble = "" if document["store"] == "ok" else f"<p class=dead>{escape(document['store'])}</p>"
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta http-equiv=refresh content=2>"
        "<meta name=viewport content='width=device-width, initial-scale=1'><title>Lighthouse</title>"
        f"<style>{_STYLE}</style><h1>Lighthouse</h1>"
        f"<p>Up for {document['uptime_s']:.0f} s; this page renews itself. Read by programs: "
        "<a href=/status.json>/status.json</a>, <a href=/metrics>/metrics</a>.</p>"
        f"{trouble}{jobs}</html>"
    )


def _job(job: Document) -> str:
    said = "".join(f"<p>{escape(line[0].upper() + line[1:])}.</p>" for line in lines(job))
    heads = "".join(f"<th>{column}" for column in COLUMNS)
    rows = "".join(_row(group) for group in job["groups"])
    return f"<h2>{escape(job_name(job))}</h2>{said}<table><tr class=heads>{heads}{rows}</table>"


def _row(group: Document) -> str:
    """The row of one group, which has the colour of its state."""
    shown = "".join(
        f"<td data-label='{column}'>{escape(cell)}</td>"
        for column, cell in zip(COLUMNS, cells(group), strict=True)
    )
    return f"<tr class={escape(group['state'])}>{shown}</tr>"
