"""The checked-in stubs are those that the .proto files give, and a stale one is noticed."""

from pathlib import Path

import pytest

from protos import generate as generate_module
from protos import lighthouse_pb2, torchft_pb2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_stubs_are_current() -> None:
    assert generate_module.stale_stubs() == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_stale_stub_is_noticed_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "protos").mkdir()
    for proto in generate_module.PROTOS:
        (tmp_path / proto).write_bytes((generate_module.ROOT / proto).read_bytes())
    made = generate_module.generate(tmp_path)
    assert len(made) == 6
    monkeypatch.setattr(generate_module, "ROOT", tmp_path)
    monkeypatch.setattr("sys.argv", ["generate", "--check"])
    assert generate_module.main() == 0
    stale = tmp_path / "protos" / "lighthouse_pb2.py"
    stale.write_text(stale.read_text() + "# changed by hand\n")
    assert generate_module.main() == 1
    assert "protos/lighthouse_pb2.py is out of date" in capsys.readouterr().err


def test_torchfts_names_and_numbers_are_kept() -> None:
    fields = {field.name: field.number for field in torchft_pb2.QuorumMember.DESCRIPTOR.fields}
    assert fields == {
        "replica_id": 1,
        "address": 2,
        "store_address": 3,
        "step": 4,
        "world_size": 5,
        "shrink_only": 6,
        "data": 7,
        "commit_failures": 8,
    }
    assert [f.number for f in torchft_pb2.Quorum.DESCRIPTOR.fields] == [1, 2, 3]
    service = torchft_pb2.DESCRIPTOR.services_by_name["LighthouseService"]
    assert service.full_name == "torchft.LighthouseService"
    assert [method.name for method in service.methods] == ["Quorum", "Heartbeat"]


def test_our_own_service() -> None:
    service = lighthouse_pb2.DESCRIPTOR.services_by_name["LighthouseService"]
    assert service.full_name == "headway.lighthouse.v1.LighthouseService"
    assert {"Attach", "Status", "Forget"} <= {method.name for method in service.methods}
