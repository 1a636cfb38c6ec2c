"""From how a training function ends to the exit code of its process."""

import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from replica.errors import ExitCode, RestartError, UserError

INTERRUPTED = 130


def run(main: Callable[[], object]) -> NoReturn:
    """Run a training function and end the process: 0 done, 3 restart me, 4 do not restart.

    A mistake of the user is told in one sentence, once per group. The process ends at once, since
    after the death of a peer the interpreter's own shutdown could wait for its sockets.
    """
    code: int = ExitCode.FINISHED
    try:
        main()
    except UserError as error:
        code = ExitCode.DO_NOT_RESTART
        if os.environ.get("RANK", "0") == "0":
            print(f"error: {error}", file=sys.stderr)
    except RestartError as error:
        code = ExitCode.RESTART
        print(f"restart needed: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except SystemExit as error:
        code = _code_of(error)
    except BaseException:
        code = ExitCode.RESTART
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _code_of(error: SystemExit) -> int:
    """What the interpreter does with it: none means success, a text is printed and means failure."""
    if error.code is None:
        return ExitCode.FINISHED
    if isinstance(error.code, int):
        known = (*ExitCode, INTERRUPTED)
        return error.code if error.code in known else ExitCode.DO_NOT_RESTART
    print(error.code, file=sys.stderr)
    return ExitCode.DO_NOT_RESTART
