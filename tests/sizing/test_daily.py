"""The hours of a day: the course keeps its mean and its peak, instances follow it, starts are paid for."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelsight.sizing.daily import Day, day_of, hours_of, instance_hours


@pytest.mark.parametrize("factor", [1.0, 1.5, 2.5, 12.0, 20.0])
def test_a_smooth_course_has_its_mean_and_its_peak(factor: float) -> None:
    day = day_of(factor, 7.0)
    assert day.mean == pytest.approx(7.0) and day.peak == pytest.approx(7.0 * factor, rel=1e-6)
    assert min(day.amounts) >= 0.0 and day.amounts[13] == pytest.approx(day.amounts[15])


def test_what_starts_was_not_there_the_hour_before() -> None:
    hours = hours_of(Day((0.0, 9.0, 3.0, 6.0), "made up"), 3.0)
    assert [hour.instances for hour in hours] == [1, 3, 1, 2]
    # from the last hour to the first one of the next day nothing starts
    assert [hour.started for hour in hours] == [0, 2, 0, 1]
    assert instance_hours(hours, 0.0) == 7.0 and instance_hours(hours, 3600.0) == 10.0


def test_a_trace_is_scaled_to_the_stated_mean(tmp_path: Path) -> None:
    path = tmp_path / "day.csv"
    # two requests an hour, six in the fourth
    arrivals = [3600.0 * hour + 100.0 * index for hour in range(24) for index in range(6 if hour == 3 else 2)]
    rows = [f"{arrival_s},8,8" for arrival_s in arrivals]
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]) + "\n")
    day = day_of(path, 13.0)
    assert day.mean == pytest.approx(13.0) and day.peak == day.amounts[3] == pytest.approx(36.0)
    assert day_of(path, None).peak == pytest.approx(6 / 3600.0)
