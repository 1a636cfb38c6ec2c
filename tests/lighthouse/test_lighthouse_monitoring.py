"""The alert rules: well formed, and each fires when it should and not otherwise, as promtool sees it."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

MONITORING = Path(__file__).parents[2] / "lighthouse" / "monitoring"
PROMTOOL = shutil.which("promtool")


@pytest.mark.parametrize(
    "words",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "alerts.yml"),
        ("test", "rules", "alerts_test.yml"),
    ],
    ids=" ".join,
)
def test_promtool_is_content(words: tuple[str, ...]) -> None:
    if PROMTOOL is None:
        pytest.skip("there is no promtool here: apt-get install prometheus")
    done = subprocess.run([PROMTOOL, *words], cwd=MONITORING, capture_output=True, text=True, timeout=60.0)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_is_seen_to_fire_and_not_to_fire() -> None:
    alerts = re.findall(r"- alert: (\w+)", (MONITORING / "alerts.yml").read_text())
    told = (MONITORING / "alerts_test.yml").read_text()
    fires = re.findall(r"alertname: (\w+)\n\s+exp_alerts:", told)
    quiet = re.findall(r"alertname: (\w+)\}", told)
    assert set(alerts) == set(fires) == set(quiet)
    assert len(alerts) == len(set(alerts))


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
