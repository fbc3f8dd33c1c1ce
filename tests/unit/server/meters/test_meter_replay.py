"""Recording a meter and playing it back: what is kept, what is refused, what is said."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fixtures.meter_fakes import Clock
from wattserve_server.energy.reading import Energy, Quality, Reading, Source
from wattserve_server.errors import ConfigError, MeterError
from wattserve_server.meters.laws import SimulatedMeter
from wattserve_server.meters.recording import create, read_recording, record
from wattserve_server.meters.replay import ReplayMeter

MS = 1_000_000
HEADER = (
    '{"format": "wattserve-meter-recording", "version": 1, "source": {"name": "nvml:GPU-5", "method": '
    '"apportioned counter", "quality": "measured", "note": "counted", "boundary": "GPU board"}, '
    '"wraps_at_uj": null, "idle_watts": null, "poll_period_s": 0.01, '
    '"started": "2026-11-20T12:00:00+00:00", "host": {"system": "Linux"}}'
)
LINES = [
    '{"at_ns": 0, "energy_uj": 500}',
    '{"at_ns": 10000000, "energy_uj": 900}',
    '{"at_ns": 20000000, "error": "the GPU is lost"}',
    '{"at_ns": 30000000, "energy_uj": 1300}',
]
END = '{"end_ns": 30000000, "lines": 4}'


@pytest.fixture
def replay(tmp_path: Path) -> Callable[..., ReplayMeter]:
    def opened(*lines: str, clock: Clock | None = None) -> ReplayMeter:
        path = tmp_path / "recorded.jsonl"
        path.write_text("".join(line + "\n" for line in lines))
        return ReplayMeter(path, clock_ns=clock or Clock())

    return opened


def test_the_value_at_an_instant_is_that_of_the_last_reading_at_or_before_it(
    replay: Callable[..., ReplayMeter],
) -> None:
    clock = Clock()
    meter = replay(HEADER, *LINES, END, clock=clock)
    seen = []
    for step_ms in (0, 9, 1, 9):
        clock.advance_s(step_ms / 1000)
        seen.append(meter.read())
    assert seen == [
        Reading(5_000_000_000, Energy(500)),
        Reading(5_009_000_000, Energy(500)),
        Reading(5_010_000_000, Energy(900)),
        Reading(5_019_000_000, Energy(900)),
    ]


def test_the_first_read_starts_the_recording_however_late_it_is(replay: Callable[..., ReplayMeter]) -> None:
    clock = Clock()
    meter = replay(HEADER, *LINES, END, clock=clock)
    clock.advance_s(77)
    assert meter.read() == Reading(82_000_000_000, Energy(500))


def test_a_recorded_failure_fails_again_and_passes_again(replay: Callable[..., ReplayMeter]) -> None:
    clock = Clock()
    meter = replay(HEADER, *LINES, END, clock=clock)
    meter.read()
    clock.advance_s(0.025)
    with pytest.raises(MeterError, match=r"^the GPU is lost$"):
        meter.read()
    clock.advance_s(0.005)
    assert meter.read().energy == Energy(1_300)


def test_after_the_end_reading_fails_and_says_that_it_is_over(replay: Callable[..., ReplayMeter]) -> None:
    clock = Clock()
    meter = replay(HEADER, *LINES, END, clock=clock)
    meter.read()
    clock.advance_s(0.031)
    with pytest.raises(MeterError) as caught:
        meter.read()
    assert str(caught.value) == "the recording has ended after 0.03 s: it is not repeated"


def test_a_replay_is_simulated_and_its_name_and_note_say_of_what(replay: Callable[..., ReplayMeter]) -> None:
    source = replay(HEADER, *LINES, END).source
    assert source == Source(
        name="replay of nvml:GPU-5",
        method="replayed apportioned counter",
        quality=Quality.SIMULATED,
        note=(
            "recorded 2026-11-20T12:00:00+00:00, measured then; played back here, where it has nothing to do "
            "with what this server draws (counted)"
        ),
        boundary="what was recorded, not this server's device: GPU board",
        counts_server=True,
    )


def test_a_replay_of_no_meter_is_no_meter(replay: Callable[..., ReplayMeter]) -> None:
    meter = replay(HEADER.replace('"measured"', '"none"'), LINES[2], '{"end_ns": 20000000, "lines": 1}')
    assert meter.source.quality is Quality.NONE


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], ": is empty; `wattserve meter record` makes recordings"),
        (["hello"], ", line 1: is not JSON"),
        (["[1]"], ", line 1: must be a JSON object"),
        (["{}"], ', line 1: is no recording of a meter ("format": "wattserve-meter-recording" is missing)'),
        (
            [HEADER.replace('"version": 1', '"version": 2')],
            ", line 1: is of version 2; this Wattserve reads version 1",
        ),
        ([HEADER.replace('"note"', '"nota"')], ", line 1: note is missing"),
        ([HEADER.replace('"measured"', '"guessed"')], ", line 1: unknown quality 'guessed'"),
        (
            [HEADER.replace('"measured"', '"\\ud800"')],
            ", line 1: quality: \\ud800 in it is half a character",
        ),
        ([HEADER.replace("0.01", "0")], ", line 1: poll_period_s must be above 0, not 0.0"),
        ([HEADER, *LINES[:2]], ", line 3: the recording was cut off behind it: its end line is missing."),
        ([HEADER], ", line 1: the recording was cut off behind it"),
        ([HEADER, *LINES[:2], '{"at_ns": 200'], ", line 4: is not JSON"),
        (
            [HEADER, *LINES[:2], '{"at_ns": 5, "energy_uj": 7}'],
            ", line 4: at_ns 5 is before that of the line",
        ),
        (
            [HEADER.replace('"wraps_at_uj": null', '"wraps_at_uj": 700'), *LINES],
            ", line 3: energy_uj 900 is above wraps_at_uj, 700",
        ),
        ([HEADER, '{"at_ns": 0}'], ", line 2: energy_uj is missing"),
        ([HEADER, '{"at_ns": 0, "energy_uj": 1.5}'], ", line 2: energy_uj cannot be 1.5"),
        ([HEADER, '{"at_ns": -1, "energy_uj": 1}'], ", line 2: at_ns must be 0 or more, not -1"),
        (
            [HEADER, '{"at_ns": 1, "energy_uj": 1%s}' % ("0" * 400)],
            ", line 2: energy_uj is more than any meter tells, which is 4.61e+18",
        ),
        (
            [HEADER.replace('"idle_watts": null', '"idle_watts": 1e300')],
            ", line 1: idle_watts is more than any meter tells, which is 1e+09",
        ),
        ([HEADER, *LINES, END.replace("4}", "9}")], ", line 6: says 9 readings, but 4 are there"),
        ([HEADER, '{"end_ns": 0, "lines": 0}'], ", line 2: the recording ends without any reading"),
        ([HEADER, *LINES, END, LINES[0]], ", line 7: something follows the end of the recording"),
    ],
)
def test_a_file_that_is_no_whole_recording_is_refused_by_its_line(
    replay: Callable[..., ReplayMeter], lines: list[str], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        replay(*lines)
    assert f"recorded.jsonl{message}" in str(caught.value)


def test_a_recording_that_was_cut_off_can_be_ended_as_the_message_says(
    replay: Callable[..., ReplayMeter],
) -> None:
    with pytest.raises(ConfigError) as caught:
        replay(HEADER, *LINES[:2])
    line = str(caught.value).partition("add the line ")[2]
    assert replay(HEADER, *LINES[:2], line).read().energy == Energy(500)


def test_a_file_that_is_not_there_or_no_text_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone.jsonl: cannot be read \(No such file or directory\)"):
        ReplayMeter(tmp_path / "gone.jsonl")
    (tmp_path / "noise").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not text"):
        ReplayMeter(tmp_path / "noise")


def recorded(clock: Clock, seconds: float | None, stop_after: int = 10**6) -> tuple[int, str]:
    file, pauses = io.StringIO(), []
    meter = SimulatedMeter(Clock(0), clock_ns=clock)

    def sleep(pause_s: float) -> bool:
        pauses.append(pause_s)
        clock.advance_s(pause_s)
        return len(pauses) >= stop_after

    count = record(
        meter, file, poll_period_s=0.05, seconds=seconds, sleep=sleep, started="then", clock_ns=clock
    )
    return count, file.getvalue()


def test_a_recording_plays_back_as_it_was_read(tmp_path: Path) -> None:
    count, text = recorded(Clock(), seconds=0.3)
    assert count == 7
    path = tmp_path / "recorded.jsonl"
    path.write_text(text)
    clock = Clock(9_000_000_000)
    meter = ReplayMeter(path, clock_ns=clock)
    joules = []
    for _ in range(7):
        joules.append(meter.read().energy.joules)
        clock.advance_s(0.05)
    assert joules == [0.0, 0.0, 4.0, 4.0, 8.0, 8.0, 12.0]
    assert (meter.idle_watts, meter.poll_period_s, meter.wraps_at) == (40.0, 0.05, None)


def test_a_recording_that_is_interrupted_ends_properly(tmp_path: Path) -> None:
    count, text = recorded(Clock(), seconds=None, stop_after=3)
    assert count == 3
    assert text.splitlines()[-1] == '{"end_ns": 100000000, "lines": 3}'
    (tmp_path / "r").write_text(text)
    assert ReplayMeter(tmp_path / "r", clock_ns=Clock()).read().energy == Energy(0)


def test_a_recording_names_no_host_and_no_path() -> None:
    _, text = recorded(Clock(), seconds=0.1)
    header = json.loads(text.splitlines()[0])
    assert sorted(header["host"]) == ["cpus", "machine", "python", "system", "wattserve"]
    assert "/" not in "".join(header["host"].values())


def test_the_first_line_has_an_instant_on_the_clock_of_the_host() -> None:
    clock = Clock()
    clock.advance_s(7)
    _, text = recorded(clock, seconds=0.1)
    header, first, *_ = (json.loads(line) for line in text.splitlines())
    assert (header["origin_monotonic_ns"], first["at_ns"]) == (12_000_000_000, 0)


def test_the_instant_of_the_first_line_is_read_back_where_there_is_one(tmp_path: Path) -> None:
    path = tmp_path / "r"
    with_origin = HEADER.replace('"host"', '"origin_monotonic_ns": 77, "host"')
    for header, origin_ns in ((HEADER, None), (with_origin, 77)):
        path.write_text("".join(line + "\n" for line in (header, *LINES, END)))
        assert read_recording(path).header.origin_monotonic_ns == origin_ns


def test_failures_are_recorded_with_their_words() -> None:
    clock, file = Clock(), io.StringIO()
    meter = SimulatedMeter(Clock(0), clock_ns=clock)
    meter.close()
    count = record(meter, file, poll_period_s=0.05, seconds=None, sleep=lambda s: True, clock_ns=clock)
    assert count == 1
    assert file.getvalue().splitlines()[1] == '{"at_ns": 0, "error": "the simulated meter is closed"}'


def test_a_recording_is_never_written_over_another_file(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(ConfigError, match="mine: is there already; choose another name or remove it"):
        create(tmp_path / "mine")
    with pytest.raises(ConfigError, match=r"cannot be written \(No such file or directory\)"):
        create(tmp_path / "no" / "such" / "folder")
