"""What a failing GPU looks like: in the kernel's log, and in the metrics of NVIDIA's DCGM exporter. Pure."""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

# Errors after which a GPU must be reset or replaced, or is about to need it, by NVIDIA's catalogue of
# Xid errors (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html). Others, 13, 31, 43
# and 45 above all, are mostly the application's own doing.
FATAL_XIDS: Mapping[int, str] = {
    46: "the GPU stopped processing",
    48: "a double-bit ECC error",
    62: "the internal micro-controller halted",
    63: "a memory row is to be remapped",
    64: "a memory row could not be remapped",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    94: "a contained memory error",
    95: "an uncontained memory error",
    119: "the GPU's system processor does not answer",
    120: "the GPU's system processor failed",
    136: "an NVLink could not be trained",
    140: "an ECC error that was not recovered",
    143: "the GPU could not be initialised",
}
XID_METRIC = "DCGM_FI_DEV_XID_ERRORS"
DOUBLE_BIT_METRIC = "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"
# One line of Prometheus' text format, and one label of it.
_SAMPLE = re.compile(rf"^({XID_METRIC}|{DOUBLE_BIT_METRIC})\{{(.*)\}}[ \t]+(\S+)", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_XID_LINE = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<device>[0-9A-Fa-f:.]+)\): (?P<xid>\d{1,4})\b")


@dataclass(frozen=True, kw_only=True, slots=True)
class Alarm:
    """A GPU of this host that will fail or has failed. `what` is one line for people."""

    device: str
    what: str


def alarm_in_line(line: str, fatal: Iterable[int] = FATAL_XIDS) -> Alarm | None:
    """The alarm that a line of the kernel's log raises, if any. Takes /dev/kmsg and syslog alike."""
    found = _XID_LINE.search(line)
    if found is None or int(found["xid"]) not in fatal:
        return None
    return Alarm(device=f"GPU {found['device']}", what=_sentence(int(found["xid"])))


class DcgmReader:
    """Compares what the exporter says with what it said before, GPU by GPU.

    The first time only sets the mark: the exporter goes on showing the last Xid of a GPU, and the sum
    of its ECC errors, long after somebody has dealt with them.
    """

    def __init__(self, fatal: Iterable[int] = FATAL_XIDS) -> None:
        self._fatal = frozenset(fatal)
        self._before: dict[tuple[str, str], float] = {}
        self._first = True

    def read(self, text: str) -> list[Alarm]:
        """The new alarms in one answer of the exporter. Raises ValueError where neither metric is in it."""
        samples = list(_samples(text))
        if not samples:
            raise ValueError(f"it shows neither {XID_METRIC} nor {DOUBLE_BIT_METRIC}")
        alarms = []
        for metric, device, value in samples:
            # A GPU that turns up later has had no errors that anybody could have seen.
            before = self._before.get((metric, device), value if self._first else 0.0)
            self._before[metric, device] = value
            if metric == XID_METRIC and value != before and value in self._fatal:
                alarms.append(Alarm(device=device, what=_sentence(int(value))))
            elif metric == DOUBLE_BIT_METRIC and value > before:
                alarms.append(Alarm(device=device, what=f"{value - before:.0f} more double-bit ECC errors"))
        self._first = False
        return alarms


def _samples(text: str) -> Iterable[tuple[str, str, float]]:
    """Metric, device and value of each sample that matters; what is no number is passed over."""
    for metric, labels, value in _SAMPLE.findall(text):
        of = dict(_LABEL.findall(labels))
        name = of.get("pci_bus_id") or of.get("UUID") or of.get("gpu", "?")
        with suppress(ValueError):
            yield metric, f"GPU {name}", float(value)


def _sentence(xid: int) -> str:
    return f"Xid {xid}, {FATAL_XIDS.get(xid, 'which counts as fatal here')}"
