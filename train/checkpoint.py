"""The saves of a job, for people: list, verify, prune and export them. No group needs to run.

    python -m train.checkpoint list URL
    python -m train.checkpoint verify URL --job NAME
    python -m train.checkpoint prune URL --job NAME --keep 3
    python -m train.checkpoint export URL OUT --job NAME

URL is what the job was given as its backstop: a folder, or s3://BUCKET/PATH and the like. Exit codes:
0 all is well; 1 something is wrong with a save or its store; 4 bad input.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from replica.backstop import retention
from replica.backstop.files import Files, files_at, sentence_of
from replica.backstop.names import PARTIAL, SaveName
from replica.backstop.store import Save, Store, StoreError, Torn
from replica.config import JOB_NAME
from replica.errors import ExitCode, RestartError, UserError
from train.progress import ByteProgress

WRONG = 1
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. Blocks until it is done."""
    try:
        arguments = _parser().parse_args(argv)
        run: Callable[[argparse.Namespace], int] = arguments.run
        return run(arguments)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return ExitCode.DO_NOT_RESTART
    except (StoreError, RestartError) as error:
        print(f"error: {error}", file=sys.stderr)
        return WRONG
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")


def _parser() -> argparse.ArgumentParser:
    assert __doc__ is not None
    parser = _Parser(
        prog="python -m train.checkpoint",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], int], what: str) -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = commands.add_parser(
            name, help=what, description=what, allow_abbrev=False
        )
        added.set_defaults(run=run)
        added.add_argument("url", metavar="URL", help="where the saves are")
        return added

    add = command(
        "list", list_saves, "Show all saves, the newest first, and those that are torn."
    ).add_argument
    add("--job", metavar="NAME", help="of this job only (default: of all jobs)")
    add("--json", action="store_true", help="as JSON")
    add = command("verify", verify_saves, "Read saves from end to end, and check every byte.").add_argument
    add("--job", metavar="NAME", help="of this job only (default: of all jobs)")
    which = commands.choices["verify"].add_mutually_exclusive_group()
    which.add_argument("--save", metavar="NAME", help="this save (default: the newest complete one)")
    which.add_argument("--all", action="store_true", help="all saves; a torn one counts as wrong")
    add = command("prune", prune_saves, "Remove saves that newer ones make superfluous.").add_argument
    add("--job", metavar="NAME", required=True, help="of this job")
    add("--keep", metavar="N", type=int, required=True, help="complete saves that stay, the newest")
    add("--dry-run", action="store_true", help="only say what would be removed")
    add = command("export", export_model, "Write the model of a save as safetensors.").add_argument
    add("out", metavar="OUT", type=Path, help="a new folder")
    add("--job", metavar="NAME", help="of this job (needed where there are several)")
    add("--save", metavar="NAME", help="this save (default: the newest complete one)")
    add("--shard-mb", metavar="N", type=int, default=5000, help="largest size of a file (default 5000)")
    return parser


# Finding


def jobs_at(url: str) -> list[str]:
    """Names of the jobs that have saves below `url`. Raises UserError or StoreError."""
    files = files_at(url)
    try:
        names = files.names("")
        if any(SaveName.parse(name) for name in names):
            job = url.rstrip("/").rpartition("/")[2]
            raise UserError(f"{url} is the folder of one job: give the one above it, and --job {job}")
        jobs = sorted(name for name in names if JOB_NAME.fullmatch(name))
        return [job for job in jobs if _has_saves(files, job)]
    except UserError:
        raise
    except Exception as error:  # whatever the library of a remote store raises
        raise StoreError(f"listing jobs at {files.where('')} failed: {sentence_of(error)}") from None


def _has_saves(files: Files, job: str) -> bool:
    try:
        folders = files.names(job)
    except NotADirectoryError:  # a file of somebody's lies beside the folders of the jobs
        return False
    return any(SaveName.parse(folder) or SaveName.parse_partial(folder) for folder in folders)


def _stores(arguments: argparse.Namespace) -> list[Store]:
    jobs = jobs_at(arguments.url) if arguments.job is None else [arguments.job]
    return [Store(arguments.url, job) for job in jobs]


def _only_store(arguments: argparse.Namespace) -> Store:
    stores = _stores(arguments)
    if not stores:
        raise UserError(f"there are no saves at {arguments.url}")
    if len(stores) > 1:
        names = ", ".join(store.job for store in stores)
        raise UserError(
            f"there are saves of several jobs at {arguments.url}: choose one of {names} with --job"
        )
    return stores[0]


def _find(store: Store, name: str | None) -> Save:
    """The save of this name, or the newest that is complete. Raises UserError or StoreError."""
    listed = store.listed()
    complete = [each for each in listed if isinstance(each, Save)]
    if name is None:
        if not complete:
            raise StoreError(f"there is no complete save of job {store.job} at {store.url}")
        return complete[0]
    for each in listed:
        if _folder(each) == name:
            if isinstance(each, Torn):
                raise StoreError(f"{store.job}/{name} is torn: {each.why}")
            return each
    known = ", ".join(each.name.text for each in complete[:3]) or "none"
    raise UserError(f"job {store.job} has no save {name!r} at {store.url}; the newest are: {known}")


def _folder(each: Save | Torn) -> str:
    return each.name.text if isinstance(each, Save) else each.folder


# Commands


def list_saves(arguments: argparse.Namespace) -> int:
    """Print all saves; returns the exit code."""
    found = [(store, each) for store in _stores(arguments) for each in store.listed()]
    if arguments.json:
        print(json.dumps([_document(store, each) for store, each in found], indent=2))
    elif found:
        print("\n".join(_table(found, time.time())))
    else:
        print(f"there are no saves at {arguments.url}")
    return 0


def _document(store: Store, each: Save | Torn) -> dict[str, Any]:
    if isinstance(each, Torn):
        return {"job": store.job, "save": each.folder, "complete": False, "why": each.why}
    facts = each.manifest.facts
    return {
        "job": store.job,
        "save": each.name.text,
        "complete": True,
        "step": each.name.step,
        "quorum_id": each.name.quorum_id,
        "saved_at_s": facts.saved_at_s,
        "bytes": each.manifest.bytes,
        "files": len(each.manifest.files),
        "group": facts.group,
        "group_world_size": facts.group_world_size,
        "mode": facts.mode,
        "digest": facts.digest,
        "versions": dict(each.manifest.versions),
    }


def _table(found: Sequence[tuple[Store, Save | Torn]], now_s: float) -> list[str]:
    rows = [("JOB", "STEP", "SAVED", "AGE", "SIZE", "RANKS", "SAVE")]
    for store, each in found:
        if isinstance(each, Torn):
            rows.append((store.job, "-", "torn", "-", "-", "-", f"{each.folder}: {each.why}"))
            continue
        facts = each.manifest.facts
        saved = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(facts.saved_at_s))
        age = _age_text(now_s - facts.saved_at_s)
        ranks = str(facts.group_world_size)
        rows.append(
            (
                store.job,
                str(each.name.step),
                saved,
                age,
                _size_text(each.manifest.bytes),
                ranks,
                each.name.text,
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]])
        for row in rows
    ]


def _age_text(age_s: float) -> str:
    for unit, seconds in (("d", 86400), ("h", 3600), ("min", 60)):
        if age_s >= seconds:
            return f"{age_s / seconds:.1f} {unit}"
    return f"{max(0.0, age_s):.0f} s"


def _size_text(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 10**9 else f"{size / 1e6:.1f} MB"


def verify_saves(arguments: argparse.Namespace) -> int:
    """Check saves, and print each problem on a line of its own; returns the exit code."""
    stores = _stores(arguments)
    if not stores:
        raise StoreError(f"there are no saves at {arguments.url}")
    wrong = 0
    for store in stores:
        for each in store.listed() if arguments.all else [_find(store, arguments.save)]:
            problems = verify(store, each)
            wrong += len(problems)
            for problem in problems:
                print(f"{store.job}/{problem}", flush=True)
            if not problems and isinstance(each, Save):
                size = _size_text(each.manifest.bytes)
                print(f"{store.job}/{each.name.text}: all of its {size} is as it was written", flush=True)
    return WRONG if wrong else 0


def verify(store: Store, each: Save | Torn) -> list[str]:
    """Read a whole save and return what is wrong with it, a sentence each, which begins with its name.

    What may be in the middle of being written is not wrong. Raises StoreError where the store does
    not answer.
    """
    if isinstance(each, Torn):
        return [] if each.folder.startswith(PARTIAL) else [f"{each.folder} is torn: {each.why}"]
    problems: list[str] = []
    entries = each.manifest.files
    with ByteProgress(f"verifying {each.name.text}", each.manifest.bytes) as progress:
        for index, entry in enumerate(entries):
            problems += store.verify(each, part=(index, len(entries)))
            progress.advance(entry.bytes)
    if not problems:
        from replica.backstop.reading import contents_of  # it loads torch

        try:
            contents_of(store, each)
        except StoreError as error:
            problems.append(f"{each.name.text}: {error}")
    return problems


def prune_saves(arguments: argparse.Namespace) -> int:
    """Remove what is superfluous, and print it; returns the exit code."""
    if arguments.keep < 1:
        raise UserError(f"--keep {arguments.keep}: at least 1 complete save must stay")
    store = Store(arguments.url, arguments.job)
    folders = superfluous(store, arguments.keep)
    for folder in folders:
        if not arguments.dry_run:
            store.remove(folder)
        print(f"{'would remove' if arguments.dry_run else 'removed'} {store.job}/{folder}", flush=True)
    if not folders:
        print(f"nothing of job {store.job} is superfluous at {store.url}")
    return 0


def superfluous(store: Store, keep: int) -> list[str]:
    """The folders that can go when the newest `keep` complete saves stay.

    A save that is torn, or unfinished, can go when a complete one of a later quorum is there; one that
    cannot be read stays, since it may be well; without any complete save nothing can go. Raises StoreError.
    """
    listed = store.listed()
    complete = [each.name for each in listed if isinstance(each, Save)]
    unreadable = {each.folder for each in listed if isinstance(each, Torn) and each.unreadable}
    readable = [folder for folder in store.folders() if folder not in unreadable]
    return retention.superfluous(readable, complete, keep=keep)


def export_model(arguments: argparse.Namespace) -> int:
    """Check a save and write its model; returns the exit code."""
    if arguments.shard_mb < 1:
        raise UserError(f"--shard-mb {arguments.shard_mb}: give a number of megabytes above 0")
    store = _only_store(arguments)
    save = _find(store, arguments.save)
    from train.export import export_save  # it loads torch

    if problems := verify(store, save):
        raise StoreError(f"the save is damaged, and nothing was written: {store.job}/{problems[0]}")
    done = export_save(store, save, arguments.out, shard_bytes=arguments.shard_mb * 10**6)
    print(
        f"wrote step {save.name.step} of job {store.job}: {_size_text(done.bytes)} in {done.tensors} tensors"
    )
    for file in done.files:
        print(f"  {arguments.out / file}")
    if done.config is None:
        print(
            "This save is not of the reference model: its parameters are there under their own names, "
            "without a config.json; load them into your own model with safetensors."
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
