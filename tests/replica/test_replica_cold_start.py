"""The conversation with the Lighthouse of a group that finds nobody alive, and what it loads."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from lighthouse.client import ColdStart, ColdStartAnswer, SaveOffer, SavesFound
from replica import cold_start
from replica.backstop import Facts, FileEntry, Found, Manifest, Save, SaveName, StoreError
from replica.cold_start import begin_cold
from replica.errors import RestartError, UserError
from replica.ledger import EventKind
from replica.stopwatch import Stopwatch
from replica.streams import StartCheck

NAME = SaveName(step=40, quorum_id=7, incarnation="0123abcd")
OFFER = SaveOffer(name=NAME.text, step=40, quorum_id=7)
HIGHEST = 11
FACTS = Facts(
    job="job",
    group=0,
    incarnation="0123abcd",
    group_world_size=1,
    mode="exact",
    layout=1,
    digest="d1",
    fingerprint="mine",
    platform="cpu",
    configuration={},
    saved_at_s=1.0,
)
SAVE = Save(
    name=NAME,
    manifest=Manifest(
        name=NAME, facts=FACTS, versions={}, files=(FileEntry(name="f", bytes=9, xxh3_128=""),)
    ),
)


class Vault:
    """Holds the saves that this group can see."""

    def __init__(
        self, *saves: Save, broken: bool = False, unreadable: bool = False, damaged: bool = False
    ) -> None:
        self.saves = saves
        self.damaged = damaged
        self.unreadable = unreadable
        self.broken = broken
        self.looked = 0
        self.loaded: list[Save] = []

    def look(self) -> Found:
        self.looked += 1
        if self.unreadable:
            raise StoreError("the bucket does not answer")
        save = self.saves[0] if self.saves else None
        return Found(save=save, highest_quorum_id=HIGHEST, unusable=self.damaged)

    def find(self, name: SaveName | None) -> Save | None:
        return next((save for save in self.saves if save.name == name), None)

    def load(self, save: Save) -> None:
        if self.broken:
            raise StoreError("the disk is gone")
        self.loaded.append(save)


class Group:
    """As much of a group of one rank as a cold start needs; the Lighthouse answers from a script."""

    def __init__(self, *answers: ColdStartAnswer, vault: Vault | None = None, digest: str = "d1") -> None:
        self.answers = list(answers)
        self.asked: list[SavesFound | None] = []
        self.above = 0
        self.rank, self.world_size = 0, 1
        self.stream: Any = self
        self.ranks: Any = self
        self.record: Any = self
        self.config = SimpleNamespace(job="job", lighthouse="h:1")
        self.stopwatch = Stopwatch()
        self.saves = None if vault is None else SimpleNamespace(vault=vault)
        self.notices = SimpleNamespace(draining=False, raise_if_ended=lambda: None)
        self.state = SimpleNamespace(digest=lambda world_size: digest)
        self.step = 0
        self.heals = False
        self.warnings: list[str] = []
        self.events: list[tuple[EventKind, dict[str, Any]]] = []

    def propose(self, found: SavesFound | None) -> ColdStartAnswer:
        self.asked.append(found)
        return self.answers.pop(0)

    def share(self, values: list[int]) -> list[tuple[int, ...]]:
        return [tuple(int(value) for value in values)]

    def will_heal(self) -> None:
        self.heals = True

    def begin_at(self, step: int, quorum_id: int) -> None:
        self.step, self.restored_quorum_id = step, quorum_id

    def rise_above(self, quorum_id: int) -> None:
        self.above = quorum_id

    def fingerprint(self) -> str:
        return "mine"

    def platform(self) -> str:
        return "cpu"

    def warn(self, message: str) -> None:
        self.warnings.append(message)

    def group_event(self, kind: EventKind, **values: Any) -> None:
        self.events.append((kind, values))


def says(verdict: ColdStart, save: SaveOffer | None = None) -> ColdStartAnswer:
    return ColdStartAnswer(verdict=verdict, save=save)


def begin(group: Group) -> StartCheck:
    return begin_cold(group)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_start, "ASK_INTERVAL_S", 0.0)


def test_saves_are_looked_at_only_when_the_lighthouse_says_that_nobody_lives() -> None:
    vault = Vault(SAVE)
    group = Group(says(ColdStart.WAIT), says(ColdStart.WAIT), says(ColdStart.HEAL), vault=vault)
    assert begin(group) is StartCheck.GO_ON
    assert group.heals
    assert vault.looked == 0
    assert group.asked == [None, None, None]


def test_the_newest_save_is_offered_and_the_one_decided_on_is_loaded() -> None:
    vault = Vault(SAVE)
    group = Group(says(ColdStart.LOOK), says(ColdStart.RESTORE, OFFER), vault=vault)
    assert begin(group) is StartCheck.GO_ON
    assert group.asked == [None, SavesFound(offer=OFFER, highest_quorum_id=HIGHEST)]
    assert group.above == HIGHEST
    assert (vault.loaded, group.step, group.restored_quorum_id, group.heals) == ([SAVE], 40, 7, False)
    [(kind, values)] = group.events
    assert kind is EventKind.BACKSTOP_READ
    assert (values["step"], values["save"], values["bytes"], values["digest"]) == (40, NAME.text, 9, "d1")


def test_another_groups_save_is_loaded_where_it_was_decided_on() -> None:
    other = replace(SAVE, name=replace(NAME, step=30))
    vault = Vault(SAVE, other)
    offer = SaveOffer(name=other.name.text, step=30, quorum_id=7)
    group = Group(says(ColdStart.LOOK), says(ColdStart.RESTORE, offer), vault=vault)
    begin(group)
    assert group.step == 30


@pytest.mark.parametrize("vault", [None, Vault()])
def test_a_group_that_cannot_see_the_save_heals_from_those_that_can(vault: Vault | None) -> None:
    group = Group(says(ColdStart.RESTORE, OFFER), vault=vault)
    assert begin(group) is StartCheck.GO_ON
    assert group.heals
    assert group.step == 0


@pytest.mark.parametrize(
    ("verdict", "check"),
    [
        (ColdStart.FRESH, StartCheck.GO_ON),
        (ColdStart.FINISHED, StartCheck.FINISHED),
        (ColdStart.LOST, StartCheck.JOB_LOST),
    ],
)
def test_without_a_save_anywhere(verdict: ColdStart, check: StartCheck) -> None:
    group = Group(says(ColdStart.LOOK), says(verdict), vault=Vault())
    assert begin(group) is check
    assert group.asked == [None, SavesFound(highest_quorum_id=HIGHEST)]
    assert group.above == HIGHEST
    assert not group.heals


@pytest.mark.parametrize(
    ("lighthouse", "advice"), [("h:1", "lighthouse forget ADDR job"), ("none", "move them away")]
)
def test_where_no_save_can_be_loaded_the_user_decides(lighthouse: str, advice: str) -> None:
    group = Group(says(ColdStart.LOOK), says(ColdStart.LOST), vault=Vault(damaged=True))
    group.config.lighthouse = lighthouse
    with pytest.raises(UserError, match=f"none can be loaded .*{advice}"):
        begin(group)
    assert group.asked == [None, SavesFound(highest_quorum_id=HIGHEST, unusable=True)]


def test_saves_that_are_forgotten_stop_nobody() -> None:
    group = Group(says(ColdStart.LOOK), says(ColdStart.FRESH), vault=Vault(damaged=True))
    assert begin(group) is StartCheck.GO_ON


def test_a_save_of_another_configuration_is_refused() -> None:
    strange = replace(SAVE, manifest=replace(SAVE.manifest, facts=replace(FACTS, fingerprint="another")))
    group = Group(says(ColdStart.RESTORE, OFFER), vault=Vault(strange))
    with pytest.raises(UserError, match="another configuration of job job"):
        begin(group)


def test_other_ranks_or_another_platform_are_told() -> None:
    facts = replace(FACTS, group_world_size=3, platform="cuda")
    moved = replace(SAVE, manifest=replace(SAVE.manifest, facts=facts))
    group = Group(says(ColdStart.RESTORE, OFFER), vault=Vault(moved))
    begin(group)
    assert group.step == 40
    assert ["ranks per group 3" in text or "platform cuda" in text for text in group.warnings] == [True, True]


def test_a_state_that_is_not_what_was_saved_is_never_trained_on() -> None:
    group = Group(says(ColdStart.RESTORE, OFFER), vault=Vault(SAVE), digest="d2")
    with pytest.raises(UserError, match="digest"):
        begin(group)


def test_a_save_that_cannot_be_loaded_after_all_asks_for_another_try() -> None:
    group = Group(says(ColdStart.RESTORE, OFFER), vault=Vault(SAVE, broken=True))
    with pytest.raises(RestartError, match="the disk is gone"):
        begin(group)
    assert group.step == 0


def test_a_store_that_does_not_answer_is_not_one_without_saves() -> None:
    group = Group(says(ColdStart.LOOK), vault=Vault(unreadable=True))
    with pytest.raises(RestartError, match="the bucket does not answer"):
        begin(group)
    assert len(group.asked) == 1


def test_a_save_that_vanishes_between_the_look_and_the_answer_is_looked_for_again() -> None:
    vault = Vault(SAVE)
    group = Group(says(ColdStart.LOOK), says(ColdStart.RESTORE, OFFER), vault=vault)
    vault.find = lambda name: None  # type: ignore[method-assign]
    with pytest.raises(RestartError, match="is gone"):
        begin(group)
    assert not group.heals


def test_what_was_found_is_looked_for_again_after_a_wait() -> None:
    vault = Vault(SAVE)
    answers = [ColdStart.LOOK, ColdStart.WAIT, ColdStart.LOOK, ColdStart.RESTORE]
    group = Group(
        *(says(each, OFFER if each is ColdStart.RESTORE else None) for each in answers), vault=vault
    )
    begin(group)
    assert vault.looked == 2
    assert [found is not None for found in group.asked] == [False, True, False, True]


def test_a_group_that_is_asked_to_leave_does_not_wait_for_an_answer() -> None:
    group = Group(says(ColdStart.WAIT), vault=Vault())
    group.notices.draining = True
    assert begin(group) is StartCheck.FINISHED
    assert group.asked == []


def test_an_incarnation_that_is_counted_out_ends() -> None:
    def ended() -> None:
        raise RestartError("counted out")

    group = Group(says(ColdStart.WAIT), vault=Vault())
    group.notices.raise_if_ended = ended
    with pytest.raises(RestartError, match="counted out"):
        begin(group)
