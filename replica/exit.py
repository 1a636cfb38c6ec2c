"""From how a training function ends to the exit code of its process."""

import contextlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from replica.errors import ExitCode, RestartError, UserError

INTERRUPTED = 130
# Set by `replica.launch` for its workers.
LAUNCHER_PID_VARIABLE = "HEADWAY_LAUNCHER_PID"
# Set by torchrun's agent, which reads the file when the worker has failed.
ERROR_FILE_VARIABLE = "TORCHELASTIC_ERROR_FILE"


def run(main: Callable[[], object]) -> NoReturn:
    """Run a training function and end the process: 0 done, 3 restart me, 4 do not restart.

    A mistake of the user is told in one sentence, once on each host of the group: by `replica.launch`
    where that has started it. The process ends at once, since after the death of a peer the interpreter's
    own shutdown could wait for its sockets.
    """
    code: int = ExitCode.FINISHED
    try:
        main()
    except UserError as error:
        code = ExitCode.DO_NOT_RESTART
        _tell(str(error))
    except RestartError as error:
        code = ExitCode.RESTART
        _say(f"restart needed: {error}")
    except KeyboardInterrupt:
        code = INTERRUPTED
    except SystemExit as error:
        code = _code_of(error)
    except BaseException:
        code = ExitCode.RESTART
        _say(traceback.format_exc().rstrip())
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


def _say(text: object) -> None:
    """On standard error, which may be a file on a disk that is full: no reason for another exit code."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr)


def _tell(mistake: str) -> None:
    """Hand the sentence to the agent, and say it where no launcher of ours will.

    Any rank may be the first to end, and the agent ends the others then: if only one of them spoke, it
    might not come to it.
    """
    path = os.environ.get(ERROR_FILE_VARIABLE)
    handed_over = False
    if path:
        # By a rename, since the agent raises where it finds half a file.
        with contextlib.suppress(OSError):
            Path(f"{path}.new").write_text(json.dumps({"message": mistake, "timestamp": int(time.time())}))
            os.replace(f"{path}.new", path)
            handed_over = True
    if handed_over and LAUNCHER_PID_VARIABLE in os.environ:
        return
    if os.environ.get("LOCAL_RANK", "0") == "0":
        _say(f"error: {mistake}")


def _code_of(error: SystemExit) -> int:
    """What the interpreter does with it: none means success, a text is printed and means failure."""
    if error.code is None:
        return ExitCode.FINISHED
    if isinstance(error.code, int):
        known = (*ExitCode, INTERRUPTED)
        return error.code if error.code in known else ExitCode.DO_NOT_RESTART
    _say(error.code)
    return ExitCode.DO_NOT_RESTART
