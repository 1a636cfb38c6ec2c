"""Rules and dashboard fit what runs, also for a real Prometheus; a group whose GPU fails is drained."""

import json
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import ProxyHandler, build_opener

import pytest
from prometheus_client.parser import text_string_to_metric_families

from train.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "lighthouse" / "monitoring"
PROMETHEUS = shutil.which("prometheus")
SCRAPED_S = 90.0
STARTING = 503
# Labels that Prometheus itself sets.
ITS_OWN = {"job", "instance"}
open_url = build_opener(ProxyHandler({})).open

Labels = dict[str, set[str]]


@pytest.fixture(scope="module")
def cluster(
    paced: dict[str, Any], tmp_path_factory: pytest.TempPathFactory, wait_back: Callable[..., None]
) -> Iterator[LocalCluster]:
    """Two groups of two ranks, one of which was killed and has healed; with saves."""
    out = tmp_path_factory.mktemp("monitoring") / "run"
    with LocalCluster(out=out, groups=2, ranks=2, save_every=5, **paced) as started:
        started.wait_step(10)
        started.kill(1)
        wait_back(started, 0, 1)
        while "headway_lighthouse_rank_lag_ratio" not in exposed(started):
            started.wait_step(started.step() + 3)
        yield started
        started.stop(grace_s=0.0)


def get(url: str) -> str:
    with open_url(url, timeout=10.0) as answer:
        return str(answer.read().decode())


def group_urls(cluster: LocalCluster) -> list[str]:
    """Where the living incarnations serve their metrics."""
    started = [event for event in cluster.events if event["kind"] == "group_started"]
    return list({event["group"]: str(event["metrics_url"]) for event in started}.values())


def exposed(cluster: LocalCluster) -> dict[str, Labels]:
    """Every metric that is served now: its labels, and their values."""
    found: dict[str, Labels] = {"up": {}}
    for url in (f"{cluster.status_url}/metrics", *group_urls(cluster)):
        for family in text_string_to_metric_families(get(url)):
            for sample in family.samples:
                labels = found.setdefault(sample.name, {})
                for name, value in sample.labels.items():
                    labels.setdefault(name, set()).add(value)
    return found


def panels() -> list[tuple[str, str]]:
    """Title and query of each panel, with the dashboard's variables filled in."""
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    return [
        (panel["title"], target["expr"].replace("$job", ".*").replace("$__rate_interval", "15s"))
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    ]


def rules() -> list[tuple[str, str]]:
    """Expression and text of each alert rule."""
    blocks = (MONITORING / "alerts.yml").read_text().split("- alert: ")[1:]
    return [(re.sub(r"\s+", " ", re.split(r"\n\s+(?:for|labels):", block)[0]), block) for block in blocks]


def check(expr: str, known: dict[str, Labels]) -> None:
    """Fails unless each metric of a query is exposed, with the labels and values that it asks for."""
    selectors = re.findall(r"\b(up|headway_\w+)(?:\{([^}]*)\})?", expr)
    assert selectors, expr
    for name, matchers in selectors:
        assert name in known, f"{name} in {expr}"
        for label, operator, wanted in re.findall(r'(\w+)(=~|!~|!=|=)"([^"]*)"', matchers):
            assert label in {*known[name], *ITS_OWN}, f"{name}{{{label}}} in {expr}"
            if label not in ITS_OWN and wanted != ".*":
                assert set(wanted.split("|")) <= known[name][label], f"{label}{operator}{wanted} in {expr}"
    for listed in re.findall(r"\b(?:by|on) \(([^)]*)\)", expr):
        for label in listed.split(", "):
            assert all(label in known[name] for name, _ in selectors), f"{label} in {expr}"


def test_every_metric_and_label_in_use_is_exposed(cluster: LocalCluster) -> None:
    known = exposed(cluster)
    for _, expr in panels():
        check(expr, known)
    for expr, text in rules():
        check(expr, known)
        for label in re.findall(r"\$labels\.(\w+)", text):
            assert any(label in known[name] for name in re.findall(r"headway_\w+", expr)), (label, expr)


def test_the_readme_names_every_metric(cluster: LocalCluster) -> None:
    section = (ROOT / "README.md").read_text().split("## Metrics and alerts\n")[1].split("\n## ")[0]
    told: set[str] = set()
    for prefix, table in re.findall(r"`(headway_\w+_)\.\.\.`(.*?\n)\n", section, re.DOTALL):
        rows = [row.split("|")[1] for row in table.splitlines()[2:]]
        told |= {prefix + name for row in rows for name in re.findall(r"`(\w+)", row)}
    assert told == {name for name in exposed(cluster) if name.startswith("headway_")}


def test_no_label_is_an_incarnation_or_an_address(cluster: LocalCluster) -> None:
    known = exposed(cluster)
    allowed = {"job", "group", "rank", "cause", "outcome", "reason", "state", "method"}
    assert {label for labels in known.values() for label in labels} <= allowed
    assert all(labels["group"] == {"0", "1"} for labels in known.values() if len(labels.get("group", ())) > 1)


def test_the_seconds_of_all_groups_add_up_to_the_clock(cluster: LocalCluster) -> None:
    started = [event for event in cluster.events if event["kind"] == "group_started"]
    began_t = {event["group"]: event["t"] - event["age_s"] for event in reversed(started)}
    families = text_string_to_metric_families(get(f"{cluster.status_url}/metrics"))
    samples = [sample for family in families for sample in family.samples]
    told_s = sum(each.value for each in samples if each.name == "headway_lighthouse_group_seconds_total")
    passed_s = sum(time.time() - t for t in began_t.values())
    # What a group does is told within a second or so, and at the end of its attempt.
    assert passed_s - 16.0 < told_s < passed_s + 1.0


def test_what_the_death_has_cost_is_on_the_page(cluster: LocalCluster) -> None:
    def of_the_one() -> dict[str, Any]:
        (job,) = json.loads(get(f"{cluster.status_url}/status.json"))["jobs"]
        (found,) = job["deaths"]
        return dict(found)

    while (death := of_the_one())["back_s"] is None:
        cluster.wait_step(cluster.step() + 1)  # what it has done is told once a second
    assert (death["group"], death["cause"]) == (1, "stream_broke")
    assert death["victim_s"] > 0.5
    assert death["lost_s"] == pytest.approx(death["victim_s"] + death["others_s"], abs=0.01)
    assert 0.5 < death["back_s"] < 120.0
    assert "ast deaths: group 1 at step" in get(cluster.status_url)


@pytest.fixture(scope="module")
def prometheus(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Prometheus with our example of a configuration, but for intervals and targets."""
    if PROMETHEUS is None:
        pytest.skip("there is no prometheus here: apt-get install prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    targets = iter([[cluster.status_url], group_urls(cluster)])
    config = (MONITORING / "prometheus.yml").read_text()
    config = re.sub(r"_interval: \d+s", "_interval: 1s", config)
    config = re.sub(r"targets: \[.*\]", lambda _: f"targets: {json.dumps(hosts(next(targets)))}", config)
    (folder / "prometheus.yml").write_text(config)
    shutil.copy(MONITORING / "alerts.yml", folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [PROMETHEUS, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stderr=log) as process,
    ):
        yield f"http://127.0.0.1:{port}"
        process.terminate()
        try:
            process.wait(timeout=20.0)
        except subprocess.TimeoutExpired:
            process.kill()


def hosts(urls: list[str]) -> list[str]:
    return [url.removeprefix("http://").removesuffix("/metrics") for url in urls]


def ask(prometheus: str, path: str, **arguments: str) -> Any:
    """What it answers, or None before it is up. Raises HTTPError where the question makes no sense."""
    try:
        return json.loads(get(f"{prometheus}/api/v1/{path}?{urlencode(arguments)}"))["data"]
    except URLError as error:
        if isinstance(error, HTTPError) and error.code != STARTING:
            raise
        return None


def has_data(prometheus: str, expr: str) -> bool:
    found = ask(prometheus, "query", query=expr)
    return bool(found) and any(value["value"][1] != "NaN" for value in found["result"])


def test_every_panel_has_data(prometheus: str) -> None:
    deadline = time.monotonic() + SCRAPED_S
    left = panels()
    assert len(left) > 30
    while left := [(title, expr) for title, expr in left if not has_data(prometheus, expr)]:
        assert time.monotonic() < deadline, f"no data after {SCRAPED_S} s: {left}"
        time.sleep(1.0)


def test_every_rule_is_evaluated_and_none_fires(prometheus: str) -> None:
    deadline = time.monotonic() + SCRAPED_S
    while not (evaluated := evaluated_rules(prometheus)):
        assert time.monotonic() < deadline
        time.sleep(1.0)
    assert {rule["name"] for rule in evaluated} == {text.split()[0] for _, text in rules()}
    assert all(rule["health"] == "ok" for rule in evaluated)
    assert [rule["name"] for rule in evaluated if rule["state"] == "firing"] == []


def evaluated_rules(prometheus: str) -> list[dict[str, Any]]:
    """The rules, once all have been looked at."""
    found = ask(prometheus, "rules")
    listed = [rule for group in found["groups"] for rule in group["rules"]] if found else []
    return listed if all(rule["health"] != "unknown" for rule in listed) else []


def test_an_xid_in_the_kernel_log_drains_the_group_and_the_job_goes_on(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    # The last test of the shared cluster: a group that is drained does not come back.
    log = tmp_path / "kmsg"
    log.write_text("6,1,1,-;NVRM: Xid (PCI:0000:3b:00): 79, of long ago\n")
    command = [sys.executable, "-m", "lighthouse", "watch-hardware", cluster.lighthouse_address, "tiny", "0"]
    with subprocess.Popen([*command, "--kernel-log", str(log)], stdout=subprocess.PIPE, text=True) as watcher:
        assert watcher.stdout is not None
        assert watcher.stdout.readline() == "watching the GPUs of this host for group 0 of tiny\n"
        with log.open("a") as kernel:
            kernel.write("4,2,2,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=python, MMU Fault\n")
            kernel.write("4,3,3,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus.\n")
        assert watcher.wait(timeout=30.0) == 0
        assert watcher.stdout.read() == "group 0 of tiny will leave at the end of its step\n"

    deadline = time.monotonic() + 60.0
    while cluster.alive(0):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    cluster.wait_step(cluster.step() + 3, group=1)
    exits = [event for event in cluster.events if event["kind"] == "group_exited" and event["group"] == 0]
    assert [event["code"] for event in exits] == [0]
    report = cluster.report()
    assert report["violations"] == []
    assert report["steps_discarded"] == 0
