"""A group of two FSDP2 ranks joins two others: each rank takes its own shard, of every kind of tensor."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from children import children, hear

RANKS = 2
Results = list[Mapping[str, Any]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """By rank, then by kind of heal."""
    folder = str(tmp_path_factory.mktemp("store"))
    with children() as started:
        ranks = [
            started.start("sharded_heal_rank.py", folder, env={"RANK": str(r), "WORLD_SIZE": str(RANKS)})
            for r in range(RANKS)
        ]
        return [json.loads(hear(rank)) for rank in ranks]


@pytest.mark.parametrize("kind", ["fresh", "second buffer", "without optimizer state"])
def test_a_joiner_has_the_donors_state_bit_for_bit_and_trains_on_alike(results: Results, kind: str) -> None:
    first = results[0][kind]
    assert first["differed"]
    assert first["adopted"] == first["expected"]
    assert first["one_step_on"] == first["donor_one_step_on"] != first["adopted"]
    for rank in results:
        assert rank[kind]["incidents"] == 0
        assert rank[kind]["bytes"] == rank[kind]["shard_bytes"]


def test_the_state_has_every_kind_of_tensor(results: Results) -> None:
    first, second = (rank["fresh"] for rank in results)
    assert {"torch.bfloat16", "torch.float8_e4m3fn", "torch.bool", "torch.int64"} <= set(first["dtypes"])
    # The buffer without elements; on rank 1 also the shards of what has one row, with both moments.
    assert (first["empty_shards"], second["empty_shards"]) == (1, 4)
    assert first["scalars"] > 1  # the steps of AdamW, and a buffer
    assert first["tied"]
    assert first["bytes"] != second["bytes"]
