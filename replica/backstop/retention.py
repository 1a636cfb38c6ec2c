"""Which folders at a store may go: one rule, for the writer that has published and for people. Pure."""

from collections.abc import Iterable, Sequence

from replica.backstop.names import TRASH, SaveName


def superfluous(
    folders: Iterable[str], whole: Sequence[SaveName], *, keep: int, own: SaveName | None = None
) -> list[str]:
    """Those of `folders` that can go when the newest `keep` whole saves stay, in order of their names.

    whole: the saves that are complete as far as the caller can tell, the newest first; without any,
    nothing can go. own: the save that the caller has just published, where it is a writer. A folder
    that is no whole save may be in flight, and stays, unless its quorum is older than that of the
    newest whole save, or it is an older one of the writer's own. What bears no name of ours stays.
    """
    if not whole:
        return []
    old = {name.text for name in whole[keep:]}
    kept = {name.text for name in whole[:keep]}

    def can_go(folder: str) -> bool:
        if folder in kept:
            return False
        return folder in old or folder.startswith(TRASH) or _is_given_up(folder, whole[0], own)

    return sorted(folder for folder in folders if can_go(folder))


def _is_given_up(folder: str, newest: SaveName, own: SaveName | None) -> bool:
    name = SaveName.parse(folder) or SaveName.parse_partial(folder)
    if name is None:
        return False
    mine = own is not None and name.incarnation == own.incarnation and name.order < own.order
    return mine or name.quorum_id < newest.quorum_id
