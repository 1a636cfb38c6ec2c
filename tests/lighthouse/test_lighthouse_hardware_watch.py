"""Watching a host: logs that grow and are rotated, an exporter that comes and goes, the drain."""

import argparse
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from lighthouse import hardware_watch
from lighthouse.channel import LighthouseError, RefusedError, UnreachableError
from lighthouse.hardware import Alarm
from lighthouse.hardware_watch import (
    AWAY_LIMIT_S,
    MISSING_LIMIT_S,
    Dcgm,
    KernelLog,
    WatchError,
    add_watch_arguments,
    insist,
    wait_for_alarm,
    watch,
)

FATAL = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
HARMLESS = "NVRM: Xid (PCI:0000:3b:00): 31, MMU Fault\n"
XID = 'DCGM_FI_DEV_XID_ERRORS{{gpu="0"}} {}\n'


def write(path: Path, text: str) -> None:
    with path.open("a") as log:
        log.write(text)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "kern.log"
    path.write_text(FATAL)
    return path


def test_only_lines_that_are_written_from_now_on_count(log: Path) -> None:
    with KernelLog(log) as watched:
        assert watched.look() == []
        write(log, HARMLESS + FATAL + HARMLESS + FATAL)
        assert [alarm.device for alarm in watched.look()] == ["GPU 0000:3b:00"] * 2
        assert watched.look() == []


def test_a_line_counts_once_it_is_whole(log: Path) -> None:
    with KernelLog(log) as watched:
        write(log, FATAL[:40])
        assert watched.look() == []
        write(log, FATAL[40:])
        assert len(watched.look()) == 1


def test_a_log_that_is_rotated_or_cut_is_followed(log: Path) -> None:
    with KernelLog(log) as watched:
        write(log, HARMLESS)
        log.rename(log.with_suffix(".1"))
        assert watched.look() == []  # nothing has the name yet
        log.write_text(FATAL)
        assert len(watched.look()) == 1
        log.write_text("")
        assert watched.look() == []
        write(log, FATAL)
        assert len(watched.look()) == 1


def test_a_line_without_an_end_takes_no_memory(log: Path) -> None:
    with KernelLog(log) as watched:
        write(log, "x" * 1_000_000)
        assert watched.look() == []
        assert len(watched._rest) <= 64 << 10
        write(log, "\n" + FATAL)
        assert len(watched.look()) == 1


def test_a_log_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(WatchError, match=r"cannot read .*nowhere \(no such file or directory\): run as"):
        KernelLog(tmp_path / "nowhere")


class Exporter(BaseHTTPRequestHandler):
    """Answers with the text that the test has set."""

    text = ""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(Exporter.text.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def exporter(port: int = 0) -> Iterator[int]:
    with HTTPServer(("127.0.0.1", port), Exporter) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_an_exporter_may_come_and_go() -> None:
    with exporter() as port:
        pass
    dcgm = Dcgm(f"http://127.0.0.1:{port}/metrics", interval_s=0.0)
    assert dcgm.look() == []
    with exporter(port):
        Exporter.text = "<html>this is another server</html>"
        assert dcgm.look() == []
        Exporter.text = XID.format(0)
        assert dcgm.look() == []
    assert dcgm.look() == []
    with exporter(port):
        Exporter.text = XID.format(79)
        assert [alarm.device for alarm in dcgm.look()] == ["GPU 0"]
        assert dcgm.look() == []


def test_an_exporter_is_not_asked_more_often_than_wanted() -> None:
    with exporter() as port:
        dcgm = Dcgm(f"http://127.0.0.1:{port}/metrics", interval_s=3600.0)
        Exporter.text = XID.format(0)
        assert dcgm.look() == []
        Exporter.text = XID.format(79)
        assert dcgm.look() == []


def test_a_malformed_url_is_one_sentence() -> None:
    with pytest.raises(WatchError, match="malformed --dcgm-url 'file:///etc/passwd'"):
        Dcgm("file:///etc/passwd")


class Says:
    """A source that says one thing after the other."""

    def __init__(self, *looks: list[Alarm]) -> None:
        self._looks = iter(looks)

    def look(self) -> list[Alarm]:
        return next(self._looks)


def test_all_sources_are_looked_at_until_one_raises_an_alarm() -> None:
    alarm = Alarm(device="GPU 0", what="Xid 79")
    pauses: list[float] = []
    assert wait_for_alarm([Says([], [], []), Says([], [], [alarm])], pauses.append) == alarm
    assert len(pauses) == 2


class Answers:
    """A Lighthouse that answers one thing after the other, the last one for ever, and a clock of its own."""

    def __init__(self, *answers: bool | Exception) -> None:
        self._answers = list(answers)
        self.now_s = 0.0

    def drain(self) -> bool:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def insist(self) -> bool:
        return insist(self.drain, clock=lambda: self.now_s, sleep=self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.now_s += seconds


AWAY = UnreachableError("nobody answers")


def test_the_drain_is_insisted_on() -> None:
    assert Answers(True).insist()
    assert Answers(AWAY, AWAY, False, False, True).insist()


def test_a_lighthouse_that_stays_away_and_a_group_that_stays_dead_end_it() -> None:
    away, dead = Answers(AWAY), Answers(AWAY, False)
    assert not away.insist()
    assert AWAY_LIMIT_S <= away.now_s < AWAY_LIMIT_S + 10
    assert not dead.insist()
    assert MISSING_LIMIT_S <= dead.now_s < MISSING_LIMIT_S + 10


def chosen(*words: str, job: str = "night", group: int = 2) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_watch_arguments(parser)
    return parser.parse_args(words, argparse.Namespace(job=job, group=group))


def never() -> bool:
    raise AssertionError("nothing was wrong with the hardware")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--kernel-log", "none"), "nothing to watch"),
        (("--kernel-log", "none", "--dcgm-url", "localhost:9400"), "malformed --dcgm-url"),
        (("--fatal-xids", "79,"), "malformed --fatal-xids '79,': want whole numbers"),
        (("--kernel-log", "/nowhere/kmsg"), "cannot read /nowhere/kmsg"),
        (("--kernel-log", "/"), r"cannot read / \(is a directory\)"),
    ],
)
def test_what_cannot_be_watched_is_one_sentence(words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(WatchError, match=sentence):
        watch(chosen(*words), never, lambda: None)


def test_names_are_checked_at_once() -> None:
    with pytest.raises(WatchError, match="malformed job 'a/b'"):
        watch(chosen(job="a/b"), never, lambda: None)
    with pytest.raises(WatchError, match="group -1"):
        watch(chosen(group=-1), never, lambda: None)


def refuse(error: LighthouseError) -> Callable[[], None]:
    def try_out() -> None:
        raise error

    return try_out


def test_one_that_would_be_refused_is_told_so_at_the_start(log: Path) -> None:
    with pytest.raises(WatchError, match="a drain would be refused: hold the token"):
        watch(chosen("--kernel-log", str(log)), never, refuse(RefusedError("hold the token")))


def test_a_lighthouse_that_is_away_at_the_start_may_come_back(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware_watch, "wait_for_alarm", lambda _sources: None)
    assert watch(chosen("--kernel-log", str(log)), lambda: True, refuse(UnreachableError("away")))
