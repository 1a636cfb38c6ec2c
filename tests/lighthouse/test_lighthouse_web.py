"""The status server: pages, methods, bounds; and the page and the metrics that it shows."""

import asyncio
import json
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families
from serving import Caller, hello, run, until

from lighthouse import web
from lighthouse.quorum import Reason
from lighthouse.web import MAX_CONNECTIONS, Page, StatusServer
from protos import lighthouse_pb2 as pb


async def ask(caller: Caller, request: str) -> tuple[str, dict[str, str], str]:
    """Status line, headers and body of the answer to a raw request."""
    assert caller.lighthouse.status_url is not None
    where = urlsplit(caller.lighthouse.status_url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    writer.write(request.encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    status, *lines = head.split("\r\n")
    return status, dict(line.lower().split(": ", 1) for line in lines), body


async def get(caller: Caller, target: str) -> str:
    status, _, body = await ask(caller, f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n")
    assert status == "HTTP/1.1 200 OK"
    return body


async def busy(caller: Caller) -> None:
    """Two groups train, one of them is asking; a torchft replica with an evil name beats."""
    for group in (0, 1):
        await caller.attached(group, "s3cret")
    await asyncio.gather(*(caller.quorum(f"job/{g}:s3cret", step=0, address="<h>") for g in (0, 1)))
    await caller.beat("<script>alert(1)</script>:s3cret".replace("/", "\\"))


def test_pages() -> None:
    async def body(caller: Caller) -> None:
        await busy(caller)
        page = await get(caller, "/")
        assert "Quorum " in page
        assert "<script" not in page
        assert "&lt;script&gt;" in page
        assert "s3cret" not in page
        assert "http:" not in page.replace("http-equiv", "")
        document = json.loads(await get(caller, "/status.json?x=1"))
        assert [job["job"] for job in document["jobs"]] == ["", "job"]
        assert document["jobs"][1]["quorum"]["members"] == ["group 0", "group 1"]
        assert await get(caller, "/healthz") == "ok\n"

    run(body)


def test_metrics_parse_and_have_no_secret_and_no_address() -> None:
    async def body(caller: Caller) -> None:
        await busy(caller)
        text = await get(caller, "/metrics")
        assert "s3cret" not in text
        assert "<h>" not in text
        families = {family.name: family for family in text_string_to_metric_families(text)}
        prefix = "headway_lighthouse_"
        waiting = {
            sample.labels["reason"]: sample.value
            for sample in families[prefix + "quorum_waiting"].samples
            if sample.labels["job"] == "job"
        }
        assert waiting == {reason.value: float(reason is Reason.NO_ASKS) for reason in Reason}
        members = families[prefix + "quorum_members"].samples
        assert {sample.labels["job"]: sample.value for sample in members} == {"": 0, "job": 2}
        steps = families[prefix + "group_step"].samples
        assert {sample.labels["group"]: sample.value for sample in steps} == {"0": 0, "1": 0}
        assert families[prefix + "quorums"].samples[1].value == 1

    run(body)


def test_metrics_of_saves() -> None:
    async def body(caller: Caller) -> None:
        stream = await caller.attached(3)
        await stream.write(
            pb.AttachRequest(saved=pb.Saved(step=7, quorum_id=1, bytes=500, seconds=2.5, age_s=60))
        )
        await stream.write(pb.AttachRequest(save_failed=pb.SaveFailed(step=9, cause="no space")))
        saves = caller.lighthouse.coordinator.machines["job"].saves
        await until(lambda: bool(saves.failures))
        lines = (await get(caller, "/metrics")).splitlines()
        prefix = "headway_lighthouse_job_save_"
        assert prefix + 'duration_seconds{job="job"} 2.5' in lines
        assert prefix + 'bytes{job="job"} 500.0' in lines
        assert prefix + 'failures_total{group="3",job="job"} 1.0' in lines
        (age,) = [line for line in lines if line.startswith(prefix + 'age_seconds{job="job"}')]
        assert 60 <= float(age.split()[1]) < 80
        assert "<p>Newest save: step 7, 1 min ago, " in await get(caller, "/")
        stream.cancel()

    run(body)


def test_metrics_and_status_of_the_time() -> None:
    async def body(caller: Caller) -> None:
        stream = await caller.attached(3)
        seconds = {"productive": 3.0, "reduce": 1.0, "<evil>": 5.0}
        await stream.write(pb.AttachRequest(pulse=pb.Pulse(seconds={"reduce": 1e-9})))
        await stream.write(pb.AttachRequest(pulse=pb.Pulse(seconds=seconds)))
        machine = caller.lighthouse.coordinator.machines["job"]
        await until(lambda: machine.times.of(3, 0.0).get("productive") == 3.0)
        text = await get(caller, "/metrics")
        assert "evil" not in text
        lines = text.splitlines()
        prefix = "headway_lighthouse_"
        assert prefix + 'group_seconds_total{cause="productive",group="3",job="job"} 3.0' in lines
        assert prefix + 'group_seconds_total{cause="reduce",group="3",job="job"} 1.0' in lines
        assert prefix + 'job_goodput_ratio{job="job"} 0.75' in lines
        (job,) = json.loads(await get(caller, "/status.json"))["jobs"]
        assert job["goodput"] == {"ratio": 0.75, "lost_s_by_cause": {"reduce": 1.0}}
        assert job["groups"][0]["goodput"]["ratio"] == 0.75
        assert "oodput 75.0%, lost most to reduce" in await get(caller, "/")
        stream.cancel()

    run(body)


def test_metrics_of_ranks() -> None:
    async def body(caller: Caller) -> None:
        first, second = await caller.attached(0), caller.watch()
        await second.write(pb.WatchRequest(hello=hello(0, group_rank=1, group_world_size=0).hello))
        for number in range(1, 8):
            await first.write(pb.AttachRequest(pulse=pb.Pulse(rounds_s=number, waited_s=0.75 * number)))
            await second.write(pb.WatchRequest(pulse=pb.Pulse(rounds_s=number, waited_s=0.25 * number)))
        slot = caller.lighthouse.coordinator.machines["job"].table.slots[0]
        await until(lambda: [len(line.waits.told) for line in slot.lines.values()] == [7, 7])
        lines = (await get(caller, "/metrics")).splitlines()
        lag = [line for line in lines if line.startswith("headway_lighthouse_rank_lag_ratio{")]
        assert lag == [
            'headway_lighthouse_rank_lag_ratio{group="0",job="job",rank="0"} 0.0',
            'headway_lighthouse_rank_lag_ratio{group="0",job="job",rank="1"} 0.5',
        ]
        first.cancel()
        second.cancel()

    run(body)


def test_metrics_of_who_is_there_and_who_is_not() -> None:
    async def body(caller: Caller) -> None:
        stays, dies, leaves = [await caller.attached(group) for group in range(3)]
        dies.cancel()
        await leaves.write(pb.AttachRequest(goodbye=pb.Goodbye(finished=False, step=0)))
        slots = caller.lighthouse.coordinator.machines["job"].table.slots
        await until(lambda: slots[1].gone is not None and slots[2].gone is not None)
        lines = (await get(caller, "/metrics")).splitlines()
        prefix = "headway_lighthouse_"
        alive = [line for line in lines if line.startswith(prefix + "group_alive{")]
        assert alive == [
            prefix + 'group_alive{group="0",job="job"} 1.0',
            prefix + 'group_alive{group="1",job="job"} 0.0',
        ]
        assert prefix + 'groups_alive{job="job"} 1.0' in lines
        assert prefix + 'expected_groups{job="job"} 4.0' in lines
        assert prefix + 'job_finished{job="job"} 0.0' in lines
        assert prefix + 'job_save_failures_total{group="1",job="job"} 0.0' in lines
        await stays.write(pb.AttachRequest(goodbye=pb.Goodbye(finished=True, step=9)))
        await until(lambda: slots[0].gone is not None)
        assert prefix + 'job_finished{job="job"} 1.0' in (await get(caller, "/metrics")).splitlines()

    run(body, expected_groups=4)


def test_calls_that_nobody_has_made_yet_are_counted_from_0() -> None:
    async def body(caller: Caller) -> None:
        lines = (await get(caller, "/metrics")).splitlines()
        for method in ("Attach", "Drain", "Quorum"):
            assert f'headway_lighthouse_calls_turned_away_total{{method="{method}"}} 0.0' in lines

    run(body)


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        ("GET /nothing HTTP/1.1\r\n\r\n", "404 Not Found"),
        ("POST / HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
        ("DELETE /status.json HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
        ("nonsense\r\n\r\n", "405 Method Not Allowed"),
        (f"GET / HTTP/1.1\r\nX: {'x' * 20_000}\r\n\r\n", "431 Request Header Fields Too Large"),
    ],
)
def test_what_is_not_served(request_text: str, status: str) -> None:
    async def body(caller: Caller) -> None:
        answer, headers, _ = await ask(caller, request_text)
        assert answer == f"HTTP/1.1 {status}"
        assert headers["connection"] == "close"

    run(body)


def test_head_has_no_body() -> None:
    async def body(caller: Caller) -> None:
        _, headers, text = await ask(caller, "HEAD /healthz HTTP/1.1\r\n\r\n")
        assert (headers["content-length"], text) == ("3", "")
        assert "default-src 'none'" in headers["content-security-policy"]

    run(body)


def test_visitors_that_say_nothing_keep_nobody_out() -> None:
    async def body(caller: Caller) -> None:
        assert caller.lighthouse.status_url is not None
        where = urlsplit(caller.lighthouse.status_url)
        silent = [await asyncio.open_connection(where.hostname, where.port) for _ in range(MAX_CONNECTIONS)]
        assert await get(caller, "/healthz") == "ok\n"
        # The oldest one made room.
        assert await silent[0][0].read() == b""
        assert not silent[-1][0].at_eof()
        for _, writer in silent:
            writer.close()

    run(body)


def test_an_answer_that_nobody_reads_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "CLOSE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(StatusServer, "answer", lambda self, target: Page(body=b"x" * (60 << 10)))
    closed: list[bool] = []

    class Deaf:
        """A visitor to whom no byte can be sent."""

        def __init__(self) -> None:
            self.aborted = False
            self.transport = self

        def write(self, data: bytes) -> None:
            pass

        def abort(self) -> None:
            self.aborted = True

        def close(self) -> None:
            closed.append(True)

        async def drain(self) -> None:
            pass

        async def wait_closed(self) -> None:
            await asyncio.Event().wait()

    async def body(caller: Caller) -> None:
        server = StatusServer(caller.lighthouse.coordinator, host="127.0.0.1", port=0)
        reader, writer = asyncio.StreamReader(), Deaf()
        reader.feed_data(b"GET / HTTP/1.1\r\n\r\n")
        await server._serve(reader, writer)  # type: ignore[arg-type]
        assert closed
        assert writer.aborted

    run(body)


def test_a_visitor_that_hangs_up_or_says_nothing_is_no_trouble() -> None:
    async def body(caller: Caller) -> None:
        assert caller.lighthouse.status_url is not None
        where = urlsplit(caller.lighthouse.status_url)
        for start in (b"", b"GET / HT"):
            _, writer = await asyncio.open_connection(where.hostname, where.port)
            writer.write(start)
            writer.close()
        assert await get(caller, "/healthz") == "ok\n"

    run(body)
