"""Command lines and environments of a local cluster's processes."""

import sys
from pathlib import Path
from typing import Any

import pytest

from replica.config import BackstopConfig, settings_from_environment
from replica.errors import UserError
from train.cluster.commands import (
    DEFAULT_CONFIG,
    ClusterSettings,
    Launcher,
    LighthouseKind,
    environment,
    group_command,
    lighthouse_command,
)
from train.cluster.job_facts import JobFacts

FACTS = JobFacts(job="night", steps=40, seed=7, rounds=6)
OUT = Path("/runs/a")


def settings(**changes: Any) -> ClusterSettings:
    return ClusterSettings(**{"out": OUT, "facts": FACTS, **changes})


def test_our_lighthouse() -> None:
    words = lighthouse_command(settings(groups=4, heartbeat_timeout_s=0.5), port=81)
    assert words[1:] == [
        *("-m", "lighthouse", "serve", "--bind", "127.0.0.1:81", "--http-bind", "127.0.0.1:0"),
        *("--expected-groups", "4", "--join-timeout-ms", "60000", "--heartbeat-timeout-ms", "500"),
        *("--state-dir", "/runs/a/lighthouse"),
    ]


def test_the_lighthouse_of_torchft() -> None:
    words = lighthouse_command(settings(lighthouse_kind=LighthouseKind.TORCHFT), port=0)
    assert Path(words[0]).name == "torchft_lighthouse"
    assert Path(words[0]).exists()
    assert words[1:5] == ["--bind", "127.0.0.1:0", "--min_replicas", "1"]


def test_the_reference_trainer() -> None:
    words = group_command(settings(overrides={"model.dim": "64"}), 2, "h:1")
    assert words == [
        *(sys.executable, "-m", "replica.launch", "--nproc-per-node", "2", "--max-restarts", "0"),
        *("-m", "train", str(DEFAULT_CONFIG), "--replica-group-id", "2", "--lighthouse-addr", "h:1"),
        *("--job", "night", "--out", "/runs/a", "--mode", "exact", "--advertise-addr", "127.0.0.1"),
        *("--steps", "40", "--model.dim", "64", "--job.seed", "7"),
    ]
    assert DEFAULT_CONFIG.is_file()


def test_a_script_of_the_user(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.touch()
    words = group_command(
        settings(script=script, args=("-x", "1"), launcher=Launcher.TORCHRUN, max_restarts=3), 0, "h:1"
    )
    assert words[1:] == [
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "3"),
        *(str(script), "-x", "1"),
    ]


def test_a_launcher_of_the_user() -> None:
    assert group_command(settings(launcher=("srun", "--x")), 0, "h:1")[:2] == ["srun", "--x"]


def test_environment_of_a_group() -> None:
    inherited = {
        "PATH": "/bin",
        "RANK": "5",
        "LOCAL_WORLD_SIZE": "9",
        "MASTER_ADDR": "elsewhere",
        "TORCHFT_LIGHTHOUSE": "old",
        "TORCHELASTIC_RUN_ID": "x",
        "HEADWAY_STEPS": "3",
        "OMP_NUM_THREADS": "64",
    }
    found = environment(settings(addresses=("a", "b", "c"), env={"MINE": "1"}), 1, "h:1", inherited)
    assert found == {
        "PATH": "/bin",
        "MINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "REPLICA_GROUP_ID": "1",
        "TORCHFT_LIGHTHOUSE": "h:1",
        "HEADWAY_OUT": "/runs/a",
        "HEADWAY_JOB": "night",
        "HEADWAY_MODE": "exact",
        "HEADWAY_SEED": "7",
        "HEADWAY_STEPS": "40",
        "HEADWAY_ADVERTISE_ADDR": "b",
        "HEADWAY_METRICS_BIND": "b:0",
        "HEADWAY_DIGEST_EVERY": "1",
    }


def test_certificates_go_to_the_lighthouse_and_to_every_group_as_names_of_files(tmp_path: Path) -> None:
    tls = {what: tmp_path / what for what in ("cert", "key", "ca")}
    for path in tls.values():
        path.touch()
    given = settings(tls=tls)
    told = environment(given, 1, "h:1", {})
    assert {what: told[f"HEADWAY_TLS_{what.upper()}"] for what in tls} == {w: str(p) for w, p in tls.items()}
    words = lighthouse_command(given, port=0)
    at = words.index("--tls-bind")
    files = [word for what, path in tls.items() for word in (f"--tls-{what}", str(path))]
    assert words[at:] == ["--tls-bind", "127.0.0.1:0", *files]
    with pytest.raises(UserError, match="give cert, key and ca"):
        settings(tls={"cert": tls["cert"]})


def test_a_token_goes_to_every_group_as_the_name_of_its_file(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a secret of this job")
    given = settings(token_file=token)
    assert environment(given, 1, "h:1", {})["HEADWAY_TOKEN_FILE"] == str(token)
    assert lighthouse_command(given, port=0)[-2:] == ["--token-file", str(token)]
    assert "HEADWAY_TOKEN_FILE" not in environment(settings(), 1, "h:1", {"HEADWAY_TOKEN_FILE": "other"})
    assert not any("secret" in word for word in group_command(given, 1, "h:1"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ()),
        (
            {"save_every": 9},
            ("--backstop", "/runs/a/saves", "--job.seed", "7", "--backstop.every_steps", "9"),
        ),
        ({"save_every": 0}, ("--backstop", "", "--job.seed", "7")),
        ({"backstop": "s3://b/x"}, ("--backstop", "s3://b/x", "--job.seed", "7")),
        ({"facts": JobFacts(job="x", backstop="/saves")}, ()),
        (
            {"facts": JobFacts(job="x", backstop="/saves"), "save_every": 2},
            ("--backstop", "/saves", "--job.seed", "0", "--backstop.every_steps", "2"),
        ),
    ],
)
def test_saves_of_the_reference_trainer(changes: dict[str, Any], words: tuple[str, ...]) -> None:
    told = group_command(settings(**changes), 0, "h:1")
    assert ("--backstop" in told) == bool(words)
    assert not words or told[-len(words) :] == list(words)


def test_saves_of_a_script() -> None:
    none = environment(settings(save_every=0), 0, "h:1", {"HEADWAY_BACKSTOP": "old"})
    assert not any("BACKSTOP" in name for name in none)
    own = environment(settings(save_every=9), 0, "h:1", {})
    assert settings_from_environment(own)["backstop"] == BackstopConfig(url="/runs/a/saves", every_steps=9)
    elsewhere = environment(settings(backstop="s3://b/x"), 0, "h:1", {})
    assert settings_from_environment(elsewhere)["backstop"] == BackstopConfig(url="s3://b/x", every_steps=50)


def test_a_script_whose_steps_are_its_own_is_told_none() -> None:
    assert "HEADWAY_STEPS" not in environment(settings(facts=JobFacts(job="x")), 0, "h:1", {})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"groups": 0}, "groups is 0"),
        ({"ranks": 0}, "ranks is 0"),
        ({"max_restarts": -1}, "max_restarts is -1"),
        ({"facts": JobFacts(job="x", steps=0)}, "steps is 0"),
        ({"heartbeat_timeout_s": 0}, "heartbeat_timeout_s is 0"),
        ({"restart_delay_s": -1}, "restart_delay_s is -1"),
        ({"save_every": -1}, "save_every is -1"),
        ({"save_every": 0, "backstop": "saves"}, "give a URL, and save_every not 0"),
        ({"backstop": ""}, "give a URL, and save_every not 0"),
        ({"addresses": ("127.0.0.2",)}, "1 addresses for 3 groups"),
        ({"script": Path("/no/such.py")}, "no script file /no/such.py"),
        ({"config": Path("/no/such.toml")}, "no configuration file /no/such.toml"),
        ({"token_file": Path("/no/token")}, "no token file /no/token"),
    ],
)
def test_bad_settings_are_refused_by_name(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        settings(**changes)
