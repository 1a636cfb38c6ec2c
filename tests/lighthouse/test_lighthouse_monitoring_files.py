"""The files for Prometheus and Grafana are written as they are, and over nothing that is there."""

import re
from pathlib import Path

import pytest

from lighthouse.__main__ import EXIT_BAD_INPUT, EXIT_OK, main
from lighthouse.config import DEFAULT_BIND, DEFAULT_HTTP_BIND, DEFAULT_TLS_BIND
from lighthouse.monitoring_files import MonitoringError, write_monitoring

SOURCE = Path(__file__).parents[2] / "lighthouse" / "monitoring"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_all_files_are_written_into_a_new_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a" / "b"
    assert main(["monitoring", str(folder)]) == EXIT_OK
    assert contents(folder) == contents(SOURCE)
    assert {"alerts.yml", "alerts_test.yml", "grafana-dashboard.json", "prometheus.yml"} == contents(
        folder
    ).keys()
    assert capsys.readouterr().out.split() == [str(path) for path in sorted(folder.iterdir())]


def test_the_example_looks_for_groups_where_no_port_of_the_lighthouse_is() -> None:
    lighthouse, groups = (SOURCE / "prometheus.yml").read_text().split("job_name: headway-groups")
    assert re.findall(r"\.example:(\d+)", lighthouse) == [str(DEFAULT_HTTP_BIND.port)]
    taken = {str(bind.port) for bind in (DEFAULT_BIND, DEFAULT_HTTP_BIND, DEFAULT_TLS_BIND)}
    ports = set(re.findall(r"\.example:(\d+)", groups))
    assert ports
    assert not ports & taken


def test_what_is_there_and_the_same_stays_and_what_is_missing_is_added(tmp_path: Path) -> None:
    (tmp_path / "mine.yml").write_text("mine")
    write_monitoring(tmp_path)
    before = (tmp_path / "alerts.yml").stat()
    (tmp_path / "prometheus.yml").unlink()
    write_monitoring(tmp_path)
    assert contents(tmp_path) == contents(SOURCE) | {"mine.yml": b"mine"}
    assert (tmp_path / "alerts.yml").stat() == before


def test_other_content_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs = tmp_path / "prometheus.yml"
    theirs.write_text("global: {}")
    assert main(["monitoring", str(tmp_path)]) == EXIT_BAD_INPUT
    assert contents(tmp_path) == {"prometheus.yml": b"global: {}"}
    said = capsys.readouterr().err
    assert said == f"lighthouse: {theirs} is there with other content: move it away, or name another folder\n"


def test_a_folder_that_cannot_be_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MonitoringError, match=r"cannot write into .*/file \(file exists\)"):
        write_monitoring(tmp_path / "file")
    (tmp_path / "prometheus.yml").symlink_to(tmp_path / "nowhere")
    with pytest.raises(MonitoringError, match=r"\(file exists\)"):
        write_monitoring(tmp_path)
    assert not (tmp_path / "nowhere").exists()
