"""What counts as the alarm of a failing GPU: lines of the kernel's log, and answers of the DCGM exporter."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lighthouse.hardware import FATAL_XIDS, Alarm, DcgmReader, alarm_in_line

BUS = Alarm(device="GPU 0000:3b:00", what="Xid 79, the GPU has fallen off the bus")


@pytest.mark.parametrize(
    "line",
    [
        "4,1234,5678901,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.",
        "Jul  3 10:00:00 host kernel: [12345.6] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
        "[12345.678901] NVRM: Xid (0000:3b:00): 79, pid='<unknown>'",
        "NVRM: Xid (PCI:0000:3b:00): 79",
        "NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 79, pid=1234, name=python, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:3b:00 GPU-I:05 GPU-CI:01): 79, pid=1234, name=python, ",
    ],
)
def test_a_fatal_xid_however_the_line_looks(line: str) -> None:
    assert alarm_in_line(line) == BUS


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 7, 790, 8, 63, 92, 94, 121, 145, 149, 157])
def test_what_needs_no_reset_is_no_alarm(xid: int) -> None:
    assert alarm_in_line(f"NVRM: Xid (PCI:0000:3b:00): {xid}, pid=1, name=python, MMU Fault") is None


@pytest.mark.parametrize("xid", [46, 48, 62, 64, 74, 79, 95, 109, 119, 120, 140, 158])
def test_what_a_reset_or_a_new_part_must_mend_is_an_alarm(xid: int) -> None:
    alarm = alarm_in_line(f"NVRM: Xid (PCI:0000:3b:00): {xid}, pid=1")
    assert alarm is not None
    assert alarm.what.startswith(f"Xid {xid}, ")


@pytest.mark.parametrize(
    "action", ["0x1 (GPU Reset Required)", "0x2 (Node Reboot Required)", "0x4 (Drain and Reset)"]
)
def test_what_the_driver_itself_wants_is_an_alarm(action: str) -> None:
    line = f"NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to {action}"
    alarm = alarm_in_line(line)
    assert alarm is not None
    assert alarm.what.startswith("Xid 154, ")


def test_a_driver_that_wants_nothing_more_is_no_alarm() -> None:
    change = "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
    assert alarm_in_line(f"NVRM: Xid (PCI:0000:3b:00): 154, {change}") is None
    assert alarm_in_line(f"NVRM: Xid (PCI:0000:3b:00): 79, {change}") is not None


@pytest.mark.parametrize(
    "line",
    [
        "",
        "NVRM: Xid (PCI:0000:3b:00): ",
        "NVRM: GPU at PCI:0000:3b:00: GPU-79",
        "Xid (PCI:0000:3b:00): 79",
        "79",
    ],
)
def test_other_lines_are_no_alarm(line: str) -> None:
    assert alarm_in_line(line) is None


def test_which_are_fatal_can_be_told() -> None:
    line = "NVRM: Xid (PCI:0000:3b:00): 31, pid=1"
    assert alarm_in_line(line, {31}) == Alarm(
        device="GPU 0000:3b:00", what="Xid 31, which counts as fatal here"
    )
    assert alarm_in_line("NVRM: Xid (PCI:0000:3b:00): 79", {31}) is None


@given(st.text())
def test_no_text_breaks_the_parsers(text: str) -> None:
    assert alarm_in_line(text) is None or "Xid" in text
    with pytest.raises(ValueError, match="it shows none"):
        DcgmReader().read(text)


def answer(*gpus: tuple[int, float]) -> str:
    """What the exporter says of each GPU: its last Xid, and how many double-bit errors it has had."""
    lines = [
        "# HELP DCGM_FI_DEV_XID_ERRORS Value of the last XID error encountered.",
        "# TYPE DCGM_FI_DEV_XID_ERRORS gauge",
    ]
    for number, (xid, _) in enumerate(gpus):
        labels = f'gpu="{number}",UUID="GPU-{number}",pci_bus_id="00000000:0{number}:00.0",modelName="H200"'
        lines.append(f'DCGM_FI_DEV_XID_ERRORS{{{labels},err_code="{xid}",err_msg="a \\"b\\""}} {xid}')
    lines.append("# TYPE DCGM_FI_DEV_ECC_DBE_VOL_TOTAL counter")
    for number, (_, errors) in enumerate(gpus):
        lines.append(f'DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{{gpu="{number}",UUID="GPU-{number}"}} {errors:g}')
    return "\n".join([*lines, 'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 41', ""])


def devices(alarms: list[Alarm]) -> list[tuple[str, str]]:
    return [(alarm.device, alarm.what.partition(",")[0]) for alarm in alarms]


def test_only_what_is_new_counts() -> None:
    reader = DcgmReader()
    assert reader.read(answer((79, 3), (0, 0))) == []  # of before: somebody may have mended it
    assert reader.read(answer((79, 3), (0, 0))) == []
    assert devices(reader.read(answer((79, 3), (48, 0)))) == [("GPU 00000000:01:00.0", "Xid 48")]
    assert reader.read(answer((79, 3), (48, 0))) == []


def test_an_xid_of_the_application_is_no_alarm_and_does_not_hide_the_next() -> None:
    reader = DcgmReader()
    assert reader.read(answer((0, 0))) == []
    assert reader.read(answer((31, 0))) == []
    assert devices(reader.read(answer((79, 0)))) == [("GPU 00000000:00:00.0", "Xid 79")]


def test_more_double_bit_errors_are_an_alarm_and_fewer_are_a_reset() -> None:
    reader = DcgmReader()
    assert reader.read(answer((0, 2))) == []
    alarms = reader.read(answer((0, 4)))
    assert alarms == [Alarm(device="GPU GPU-0", what="2 more double-bit ECC errors")]
    assert reader.read(answer((0, 0))) == []
    assert len(reader.read(answer((0, 1)))) == 1


def test_a_gpu_that_turns_up_later_with_an_error_is_an_alarm() -> None:
    reader = DcgmReader()
    assert reader.read(answer((0, 0))) == []
    assert devices(reader.read(answer((0, 0), (79, 0)))) == [("GPU 00000000:01:00.0", "Xid 79")]


@pytest.mark.parametrize("name", ["DCGM_FI_DEV_ROW_REMAP_FAILURE", "DCGM_FI_DEV_ROW_REMAP_FAILED"])
def test_a_row_that_could_not_be_remapped_is_an_alarm(name: str) -> None:
    reader = DcgmReader()
    assert reader.read(f'{name}{{gpu="0",UUID="GPU-0"}} 0\n{name}{{gpu="1",UUID="GPU-1"}} 1\n') == []
    assert reader.read(f'{name}{{gpu="0",UUID="GPU-0"}} 1\n{name}{{gpu="1",UUID="GPU-1"}} 1\n') == [
        Alarm(device="GPU GPU-0", what="a memory row could not be remapped")
    ]


def test_the_new_name_of_the_xid_is_known() -> None:
    reader = DcgmReader()
    assert reader.read('DCGM_FI_DEV_XID_ERROR{gpu="0",UUID="GPU-0"} 0\n') == []
    assert len(reader.read('DCGM_FI_DEV_XID_ERROR{gpu="0",UUID="GPU-0"} 79\n')) == 1


def test_the_parts_of_a_shared_gpu_are_kept_apart() -> None:
    text = (
        'DCGM_FI_DEV_XID_ERRORS{{gpu="0",UUID="GPU-0",GPU_I_ID="3"}} 0\n'
        'DCGM_FI_DEV_XID_ERRORS{{gpu="0",UUID="GPU-0",GPU_I_ID="5"}} {}\n'
    )
    reader = DcgmReader()
    assert reader.read(text.format(79)) == []
    assert reader.read(text.format(79)) == []
    assert devices(reader.read(text.format(95))) == [("GPU GPU-0 instance 5", "Xid 95")]


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "79.5"])
def test_odd_values_are_no_alarm(value: str) -> None:
    reader = DcgmReader()
    reader.read(answer((0, 0)))
    assert reader.read(f'DCGM_FI_DEV_XID_ERRORS{{gpu="0",UUID="GPU-0"}} {value}\n') == []


def test_every_fatal_xid_has_a_phrase() -> None:
    assert all(phrase and phrase[0].islower() and not phrase.endswith(".") for phrase in FATAL_XIDS.values())
