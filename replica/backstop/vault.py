"""The saves as they are read by a whole group, on the day when no group of the job is left."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch.distributed as dist

from replica.backstop.deadline import Deadline
from replica.backstop.names import SaveName
from replica.backstop.reading import read_save
from replica.backstop.staging import Staging
from replica.backstop.store import Save, Store, StoreError, Torn
from replica.mesh import Ranks

LOG = logging.getLogger("headway")
T = TypeVar("T")
_NOTHING = (-1, -1, -1)


@dataclass(frozen=True, kw_only=True)
class Found:
    """What lies at the store: the newest save that is complete, every byte of it checked, if there is one.

    highest_quorum_id: of all that bear the name of a save, usable or not; 0 without any. unusable: some
    were published, and none of them is complete.
    """

    save: Save | None = None
    highest_quorum_id: int = 0
    unusable: bool = False


class Vault:
    """Finds and loads saves. All methods are collectives of the group, on the training thread.

    They block while files are read: the ranks wait for each other over `process_group`, whose
    timeout is longer than `timeout_s`. That is how long one listing, one rank's checking of one
    save and the loading of one may take, each; a store that is slower, or hangs, raises StoreError.
    """

    def __init__(
        self,
        *,
        store: Store,
        staging: Staging,
        process_group: dist.ProcessGroup,
        ranks: Ranks,
        timeout_s: float,
    ) -> None:
        self._store = store
        self._staging = staging
        self._process_group = process_group
        self._ranks = ranks
        self._timeout_s = timeout_s

    def look(self) -> Found:
        """Look through the saves, the newest first, for one that is complete; the ranks share the checking.

        Those that are passed over are named in the log. Raises StoreError on all ranks where one of
        them cannot read the store, or where there is none but one that cannot be read: that there
        are no saves must never be concluded from it.
        """
        seen = self._together("listing saves", self._listed)
        save = self._newest_of(seen)
        highest = max((_quorum_id_of(each) for each in seen), default=0)
        published = any(isinstance(each, Save) or each.published for each in seen)
        rows = self._share([highest, published])
        return Found(
            save=save,
            highest_quorum_id=max(row[0] for row in rows),
            unusable=save is None and any(row[1] for row in rows),
        )

    def _newest_of(self, seen: Sequence[Save | Torn]) -> Save | None:
        names = iter([each.name for each in seen if isinstance(each, Save)])
        while (name := self._from_first(next(names, None))) is not None:
            look = partial(self._problems_of, _named(seen, name))
            problems = self._together(f"checking {name.text}", look)
            for problem in problems:
                LOG.warning("skipping save %s: %s", name.text, problem)
            if self._all_agree(not problems):
                return _named(seen, name)
        unreadable = [each for each in seen if isinstance(each, Torn) and each.unreadable]
        if not self._all_agree(not unreadable):
            which = f"{unreadable[0].folder}: {unreadable[0].why}" if unreadable else "one, on another rank"
            raise StoreError(f"there is no complete save, but some cannot be read: {which}")
        return None

    def find(self, name: SaveName | None) -> Save | None:
        """The complete save that rank 0 names, None where the store of any rank does not have it.

        Raises StoreError on all ranks where one of them cannot read the store.
        """
        told = self._from_first(name)
        save = None if told is None else _named(self._together("listing saves", self._listed), told)
        return save if self._all_agree(save is not None) else None

    def load(self, save: Save) -> None:
        """Make this save the state of all ranks. Raises StoreError on all of them, and changes nothing."""
        read_save(
            self._store,
            save,
            self._staging.tensors(),
            process_group=self._process_group,
            rank=self._ranks.rank,
            world_size=self._ranks.world_size,
            timeout_s=self._timeout_s,
        )
        self._staging.adopt()

    def _listed(self) -> Sequence[Save | Torn]:
        seen = self._store.listed()
        for each in seen:
            if isinstance(each, Torn) and self._ranks.rank == 0:
                LOG.warning("skipping save %s: %s", each.folder, each.why)
        return seen

    def _problems_of(self, save: Save | None) -> Sequence[str]:
        if save is None:
            return [f"rank {self._ranks.rank} does not see it"]
        return self._store.verify(save, part=(self._ranks.rank, self._ranks.world_size))

    def _together(self, doing: str, look: Callable[[], Sequence[T]]) -> Sequence[T]:
        """What `look` finds within the time limit; the StoreError of any rank is raised on all."""
        found: Sequence[T] = ()
        trouble: StoreError | None = None
        try:
            found = self._store.bounded(doing, Deadline(self._timeout_s), look)
        except StoreError as error:
            trouble = error
        if self._all_agree(trouble is None):
            return found
        raise trouble or StoreError("another rank of this group cannot read the saves")

    def _from_first(self, name: SaveName | None) -> SaveName | None:
        """What rank 0 named."""
        mine = _NOTHING if name is None else (name.step, name.quorum_id, int(name.incarnation, 16))
        step, quorum_id, incarnation = self._share(mine)[0]
        if step < 0:
            return None
        return SaveName(step=step, quorum_id=quorum_id, incarnation=f"{incarnation:08x}")

    def _all_agree(self, mine: bool) -> bool:
        return all(row[0] for row in self._share([mine]))

    def _share(self, values: Sequence[int]) -> list[tuple[int, ...]]:
        return self._ranks.share(values, self._process_group)


def _quorum_id_of(each: Save | Torn) -> int:
    return each.quorum_id if isinstance(each, Torn) else each.name.quorum_id


def _named(seen: Sequence[Save | Torn], name: SaveName) -> Save | None:
    return next((each for each in seen if isinstance(each, Save) and each.name == name), None)
