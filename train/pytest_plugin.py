"""The pytest fixture `local_cluster`: kills and restarts of your own training script, in a test.

    def test_my_script_survives(local_cluster):
        cluster = local_cluster(script="train_mine.py", groups=2, ranks=1, steps=30)
        cluster.wait_step(10)
        cluster.kill(1)
        assert cluster.wait()["steps_replayed"] == 0

Known to pytest wherever the package is installed. Loads nothing until a test asks for it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from train.cluster.local_cluster import LocalCluster


class StartCluster(Protocol):
    """Starts a LocalCluster and returns it when its Lighthouse listens and its groups are started.

    options: whatever else LocalCluster takes. Relative paths count from the current folder. Files go
    below the test's tmp_path, which pytest keeps for a while.
    """

    def __call__(
        self,
        script: str | Path | None = None,
        *,
        groups: int = 2,
        ranks: int = 1,
        steps: int = 30,
        **options: Any,
    ) -> "LocalCluster": ...


@pytest.fixture
def local_cluster(tmp_path: Path) -> Iterator[StartCluster]:
    """A function that starts clusters; all of them are ended when the test is over."""
    from train.cluster.local_cluster import LocalCluster

    started: list[LocalCluster] = []

    def start(
        script: str | Path | None = None,
        *,
        groups: int = 2,
        ranks: int = 1,
        steps: int = 30,
        **options: Any,
    ) -> LocalCluster:
        options.setdefault("out", tmp_path / f"cluster-{len(started)}")
        path = None if script is None else Path(script)
        cluster = LocalCluster(script=path, groups=groups, ranks=ranks, steps=steps, **options)
        started.append(cluster)
        return cluster.start()

    yield start
    for cluster in started:
        cluster.stop(grace_s=0.0)
