"""What a failing GPU looks like: in the kernel's log, and in the metrics of NVIDIA's DCGM exporter. Pure."""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

# Errors for which NVIDIA's catalogue (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html)
# has the GPU reset or its host restarted at once: by name, or at the end of a workflow (48, 74). Of the
# NVLink errors 144 to 150 some are harmless; after the others the driver says 154, as after most of these.
FATAL_XIDS: Mapping[int, str] = {
    46: "the GPU stopped processing",
    48: "a double-bit ECC error",
    62: "the internal micro-controller halted",
    64: "a memory row could not be remapped",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    95: "an uncontained memory error",
    109: "a context switch timed out",
    110: "a security fault",
    119: "the GPU's system processor does not answer",
    120: "the GPU's system processor failed",
    136: "an NVLink could not be trained",
    140: "an ECC error that was not recovered",
    143: "the GPU could not be initialised",
    151: "keys could not be rotated",
    154: "the driver wants the GPU drained or reset, or its host restarted",
    155: "an NVLink went down",
    156: "a part of the GPU is to be retired",
    158: "the GPU timed out for good",
}
_RECOVERY_ACTION_CHANGED = 154
# The driver says it, too, once there is nothing more to be done: "... changed from 0x1 (...) to 0x0 (None)".
_NO_ACTION = re.compile(r"\bto 0x0\b")
XID_METRIC = "DCGM_FI_DEV_XID_ERRORS"
DOUBLE_BIT_METRIC = "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"
REMAP_METRIC = "DCGM_FI_DEV_ROW_REMAP_FAILURE"
# Two of them are named anew since DCGM 4.7 and version 4.9 of its exporter.
_NAMES = {
    XID_METRIC: XID_METRIC,
    "DCGM_FI_DEV_XID_ERROR": XID_METRIC,
    DOUBLE_BIT_METRIC: DOUBLE_BIT_METRIC,
    REMAP_METRIC: REMAP_METRIC,
    "DCGM_FI_DEV_ROW_REMAP_FAILED": REMAP_METRIC,
}
# One line of Prometheus' text format, and one label of it.
_SAMPLE = re.compile(rf"^({'|'.join(_NAMES)})\{{(.*)\}}[ \t]+(\S+)", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
# Where a GPU is shared out, its parts are named behind the address: (PCI:0000:3b:00 GPU-I:05 GPU-CI:01).
_XID_LINE = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<device>[0-9A-Fa-f:.]+)[^)]*\): (?P<xid>\d{1,4})\b(?P<rest>.*)"
)


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
    xid = int(found["xid"])
    if xid == _RECOVERY_ACTION_CHANGED and _NO_ACTION.search(found["rest"]):
        return None
    return Alarm(device=f"GPU {found['device']}", what=_sentence(xid))


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
        """The new alarms in one answer of the exporter. Raises ValueError where no such metric is in it."""
        samples = list(_samples(text))
        if not samples:
            raise ValueError(f"it shows none of {XID_METRIC}, {DOUBLE_BIT_METRIC} and {REMAP_METRIC}")
        alarms = []
        for metric, device, value in samples:
            # A GPU that turns up later has had no errors that anybody could have seen.
            before = self._before.get((metric, device), value if self._first else 0.0)
            self._before[metric, device] = value
            what = self._alarm(metric, before, value)
            if what is not None:
                alarms.append(Alarm(device=device, what=what))
        self._first = False
        return alarms

    def _alarm(self, metric: str, before: float, value: float) -> str | None:
        if metric == XID_METRIC:
            return _sentence(int(value)) if value != before and value in self._fatal else None
        if not value > before:
            return None
        if metric == REMAP_METRIC:
            return "a memory row could not be remapped"
        return f"{value - before:.0f} more double-bit ECC errors"


def _samples(text: str) -> Iterable[tuple[str, str, float]]:
    """Metric, device and value of each sample that matters; what is no number is passed over."""
    for metric, labels, value in _SAMPLE.findall(text):
        with suppress(ValueError):
            yield _NAMES[metric], _device(dict(_LABEL.findall(labels))), float(value)


def _device(labels: Mapping[str, str]) -> str:
    name = labels.get("pci_bus_id") or labels.get("UUID") or labels.get("gpu", "?")
    part = labels.get("GPU_I_ID")
    return f"GPU {name} instance {part}" if part else f"GPU {name}"


def _sentence(xid: int) -> str:
    return f"Xid {xid}, {FATAL_XIDS.get(xid, 'which counts as fatal here')}"
