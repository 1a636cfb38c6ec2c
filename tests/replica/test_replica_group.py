"""A whole group of one rank against a real Lighthouse: it trains what plain torch trains, and ends well."""

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import tiny_job
import torch
from children import Children, children, hear
from torch import nn

from replica.averaging import gradient_sum
from replica.bridge.manager import Start
from replica.config import GroupConfig, Mode
from replica.errors import UserError
from replica.group import ReplicaGroup
from replica.opening import Opening
from replica.position import sample_indices


@pytest.fixture(scope="module")
def lighthouse() -> Iterator[str]:
    """HOST:PORT of a Lighthouse of this module's own."""
    with children() as started:
        words = ["serve", "--bind", "127.0.0.1:0", "--http-bind", "127.0.0.1:0", "--state-dir", "none"]
        first_line = hear(started.start("-m", "lighthouse", *words))
        found = re.match(r"lighthouse listening on http://(\S+), ", first_line)
        assert found is not None, first_line
        yield found[1]


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How one run of the tiny job ended, and the evidence it left."""

    code: int
    said: dict[str, Any] | None
    stderr: str
    ledger: list[dict[str, Any]]
    events: list[dict[str, Any]]


def start(
    runs: Children, lighthouse: str, out: Path, *, job: str, trouble: str = ""
) -> subprocess.Popen[str]:
    return runs.start(
        "tiny_job.py",
        env={
            "TORCHFT_LIGHTHOUSE": f"http://{lighthouse}",
            "REPLICA_GROUP_ID": "4",
            "HEADWAY_JOB": job,
            "HEADWAY_OUT": str(out),
            "TINY_TROUBLE": trouble,
        },
    )


def ended(child: subprocess.Popen[str], out: Path) -> Ended:
    stdout, stderr = child.communicate(timeout=90)
    ledger, events = out / "ledger" / "group-4.jsonl", out / "events.jsonl"
    return Ended(
        code=child.returncode,
        said=json.loads(stdout) if stdout else None,
        stderr=stderr,
        ledger=[json.loads(line) for line in ledger.read_text().splitlines()] if ledger.is_file() else [],
        events=[json.loads(line) for line in events.read_text().splitlines()] if events.is_file() else [],
    )


@pytest.fixture(scope="module")
def runs(lighthouse: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """Several jobs at once, by name; `late` is a job that is started again after it has finished."""
    names = ("plain", "again", "full", "nan", "batch-norm", "late")
    folders = {name: tmp_path_factory.mktemp(name) for name in names}
    (folders["full"] / "ledger").mkdir()
    for name in ("events.jsonl", "ledger/group-4.jsonl"):
        (folders["full"] / name).symlink_to("/dev/full")
    troubles = {"plain": "", "again": "", "full": "", "nan": "nan", "batch-norm": "batch-norm"}
    with children() as started:
        running = {
            name: start(started, lighthouse, folders[name], job=name, trouble=trouble)
            for name, trouble in troubles.items()
        }
        found = {name: ended(child, folders[name]) for name, child in running.items()}
        late = start(started, lighthouse, folders["late"], job="plain")
        return found | {"late": ended(late, folders["late"])}


def trained_by_plain_torch() -> dict[str, torch.Tensor]:
    """The tiny job again, in an ordinary loop over steps and micro-batches."""
    model = tiny_job.build()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(tiny_job.STEPS):
        total = [torch.zeros_like(parameter) for parameter in model.parameters()]
        for index in range(tiny_job.MICRO_BATCHES):
            samples = sample_indices(
                seed=5,
                step=step,
                micro_batch=index,
                micro_batches=tiny_job.MICRO_BATCHES,
                samples_per_micro_batch=tiny_job.SAMPLES,
                dataset_size=len(tiny_job.DATA),
            )
            gradients = torch.autograd.grad(tiny_job.loss_of(model, samples), list(model.parameters()))
            total = [old + new for old, new in zip(total, gradients, strict=True)]
        for parameter, gradient in zip(model.parameters(), total, strict=True):
            parameter.grad = gradient / tiny_job.MICRO_BATCHES
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        for group in optimizer.param_groups:
            group["lr"] = tiny_job.rate(step)
        optimizer.step()
    return dict(model.state_dict())


def test_a_group_alone_trains_what_plain_torch_trains(runs: dict[str, Ended]) -> None:
    run = runs["plain"]
    assert run.code == 0, run.stderr
    assert run.said is not None
    assert run.said["step"] == tiny_job.STEPS
    expected = trained_by_plain_torch()
    assert run.said["weights"].keys() == expected.keys()
    for name, values in run.said["weights"].items():
        torch.testing.assert_close(torch.tensor(values), expected[name])


def test_its_ledger_tells_every_step_once(runs: dict[str, Ended]) -> None:
    ledger = runs["plain"].ledger
    assert [line["step"] for line in ledger] == list(range(tiny_job.STEPS))
    assert {line["outcome"] for line in ledger} == {"committed"}
    assert all(line["rounds"] == [[index, 4] for index in range(4)] for line in ledger)
    assert all(line["participants"] == [4] for line in ledger)
    assert len({line["digest"] for line in ledger}) == tiny_job.STEPS
    assert [line["lr"] for line in ledger] == [tiny_job.rate(step) for step in range(tiny_job.STEPS)]
    assert ledger[-1]["loss"] < ledger[0]["loss"]


def test_its_events_tell_start_rounds_and_end(runs: dict[str, Ended]) -> None:
    events = runs["plain"].events
    kinds = [event["kind"] for event in events]
    assert (kinds[0], kinds[-1]) == ("group_started", "finished")
    rounds = [(event["step"], event["round"]) for event in events if event["kind"] == "round_done"]
    assert rounds == [(step, index) for step in range(tiny_job.STEPS) for index in range(4)]
    assert len({event["input_xxh64"] for event in events if event["kind"] == "round_done"}) == len(rounds)


def test_its_account_is_that_of_its_ledger(runs: dict[str, Ended]) -> None:
    """What the group says of its own time follows from the files too; a step takes milliseconds here."""
    run = runs["plain"]
    assert run.said is not None
    spent = run.said["seconds"]
    phases = [line["seconds"] for line in run.ledger]
    for each in phases:
        parts = ("quorum", "configure", "heal", "compute", "reduce", "vote", "commit")
        assert sum(each[part] for part in parts) == pytest.approx(each["total"], abs=1e-6)
    told = {part: sum(each[part] for each in phases) for part in phases[0]}
    assert spent["productive"] == pytest.approx(told["compute"] + told["commit"] + told["script"], abs=0.02)
    assert spent["reduce"] == pytest.approx(told["reduce"] + told["vote"], abs=0.02)
    assert spent["reconfiguring"] == pytest.approx(told["configure"], abs=0.02)
    assert min(told["compute"], told["commit"], told["configure"]) > 0
    assert spent["quorum"] > told["quorum"] > 0  # it attaches before the first attempt
    assert spent["restarting"] == pytest.approx(run.events[0]["age_s"], abs=0.2)
    assert spent["ended_attempt"] == spent["healing"] == spent["save"] == spent["spare"] == 0


def test_two_runs_with_the_same_seed_are_bit_identical(runs: dict[str, Ended]) -> None:
    digests = [[line["digest"] for line in runs[name].ledger] for name in ("plain", "again")]
    assert digests[0] == digests[1] != []


def test_a_disk_without_room_for_its_evidence_costs_it_nothing_else(runs: dict[str, Ended]) -> None:
    run = runs["full"]
    assert run.code == 0, run.stderr
    assert run.said is not None
    assert runs["plain"].said is not None
    assert run.said["weights"] == runs["plain"].said["weights"]
    assert run.stderr.count("cannot be written (No space left on device): what belongs there is lost") == 2


def test_a_group_that_comes_after_the_end_leaves_at_once(runs: dict[str, Ended]) -> None:
    late = runs["late"]
    assert late.code == 0, late.stderr
    assert late.said is not None
    assert late.said["step"] == 0
    assert late.ledger == []


def test_a_loss_that_is_never_finite_ends_the_job_with_one_sentence(runs: dict[str, Ended]) -> None:
    run = runs["nan"]
    assert run.code == 4
    assert run.stderr.count("error: step 3 gave a loss or gradient that is not finite 3 times in a row") == 1
    assert "the loss (nan) in micro-batch 2 of group 4, rank 0, is not finite" in run.stderr
    assert "Traceback" not in run.stderr
    outcomes = [(line["step"], line["outcome"], line["reason"]) for line in run.ledger]
    assert outcomes[:3] == [(step, "committed", "none") for step in range(3)]
    assert outcomes[3:] == [(3, "discarded", "non_finite")] * 3


def test_running_statistics_are_refused_by_name(runs: dict[str, Ended]) -> None:
    run = runs["batch-norm"]
    assert run.code == 4
    assert "error: module 3 (BatchNorm1d) keeps running statistics" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("mode", Mode)
def test_waiting_at_the_end_sums_buffers_as_long_as_those_of_a_step(mode: Mode) -> None:
    """Where members bring buffers of different lengths, gloo ends the processes of all."""
    group = object.__new__(ReplicaGroup)
    weight = nn.Parameter(torch.zeros(7))
    group.sum = gradient_sum(mode, {"weight": weight}, rounds=4)
    weight.grad = torch.ones(7)
    group.sum.add_round(0, 1.0)
    sent: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> None:
        sent.append(tensor.clone())

    collectives = SimpleNamespace(sum_in_place=keep, max_in_place=keep)
    group.bridge = cast(Any, SimpleNamespace(process_group=collectives))
    group.saves = None
    group.ranks = cast(Any, SimpleNamespace(share=lambda values: [tuple(values)]))
    Opening(group)._close(Start(quorum_id=1, changed=False, peers=(), configured=True, error=None))
    at_the_end = len(sent)
    group.sum.reduce(collectives)
    assert [(each.shape, each.dtype) for each in sent[:at_the_end]] == [
        (each.shape, each.dtype) for each in sent[at_the_end:]
    ]
    assert not any(each.any() for each in sent[:at_the_end])


def settings_seen(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> GroupConfig:
    """The configuration that `from_env` would start a group with."""
    seen: list[GroupConfig] = []
    monkeypatch.setattr(ReplicaGroup, "__init__", lambda self, config, **rest: seen.append(config))
    ReplicaGroup.from_env(steps=1, micro_batches=1, **settings)
    return seen[0]


def test_explicit_settings_beat_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHFT_LIGHTHOUSE", "http://from-environment:1")
    monkeypatch.setenv("REPLICA_GROUP_ID", "3")
    monkeypatch.setenv("HEADWAY_STEPS", "77")
    config = settings_seen(monkeypatch, lighthouse="[::1]:2", out="/tmp/x")
    assert (config.lighthouse, config.group, config.steps, config.out) == ("[::1]:2", 3, 1, Path("/tmp/x"))


def test_with_a_lighthouse_a_group_has_no_number_unless_it_is_given_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("REPLICA_GROUP_ID", raising=False)
    with pytest.raises(
        UserError, match="the number of this replica group is not given: set REPLICA_GROUP_ID"
    ):
        settings_seen(monkeypatch, lighthouse="host:1")
    assert settings_seen(monkeypatch, lighthouse="host:1", group=0).group == 0
    assert settings_seen(monkeypatch, lighthouse="none").group == 0


def test_the_scheme_may_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICA_GROUP_ID", "0")
    monkeypatch.setenv("TORCHFT_LIGHTHOUSE", "http://host:1")
    assert settings_seen(monkeypatch).lighthouse == "host:1"
    monkeypatch.setenv("TORCHFT_LIGHTHOUSE", "host:1")
    assert settings_seen(monkeypatch).lighthouse == "host:1"


@pytest.mark.parametrize(
    ("value", "sentence"), [("", "no Lighthouse is given"), ("nonsense", "malformed address 'nonsense'")]
)
def test_a_missing_or_malformed_lighthouse_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, value: str, sentence: str
) -> None:
    monkeypatch.setenv("TORCHFT_LIGHTHOUSE", value)
    with pytest.raises(UserError, match=sentence):
        settings_seen(monkeypatch)
