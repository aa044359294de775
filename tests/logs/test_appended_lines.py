"""Appended lines of a log: each once, through rotation, truncation, restarts and lines that are half written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kernelsight.errors import InvalidInput
from kernelsight.logs.appended_lines import Position, appended, requests_of
from tests.special_files import SPECIAL, special_file

HEADER = "arrival_s,prompt_tokens,output_tokens,ttft_ms,e2e_ms\n"


def line(number: int) -> str:
    return f"{1000 + number},{100 + number},10,20,50\n"


def write(path: Path, *numbers: int, header: str = "", mode: str = "a") -> None:
    with path.open(mode) as file:
        file.write(header + "".join(map(line, numbers)))


def read(path: Path, place: Position, most: int = 1 << 20) -> tuple[list[int], Position, list[str]]:
    """Return the numbers of the lines that are new, the place behind them, and what happened to the file."""
    numbers, events = [], []
    for part in appended(path, place, most):
        for found in requests_of(part, path, "auto", None)[0]:
            numbers += [tokens - 100 for tokens in found["prompt_tokens"].to_list()]
        place = Position(*json.loads(json.dumps(part.place)))  # as a state keeps it
        events += [part.event] if part.event else []
    return numbers, place, events


def test_each_line_is_read_once_and_a_half_one_when_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "day.csv"
    assert read(path, Position()) == ([], Position(), [])
    write(path, 1, 2, header=HEADER)
    numbers, place, _ = read(path, Position())
    assert numbers == [1, 2] and read(path, place)[0] == []
    with path.open("a") as file:
        file.write(line(3) + line(4)[:6])
    numbers, place, _ = read(path, place)
    assert numbers == [3]
    with path.open("a") as file:
        file.write(line(4)[6:])
    numbers, place, events = read(path, place)
    assert (numbers, events) == ([4], [])


def test_a_piece_at_a_time_holds_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "day.csv"
    write(path, *range(50), header=HEADER)
    assert read(path, Position(), most=100)[0] == list(range(50))
    with pytest.raises(InvalidInput, match="has a line of more than"):
        list(appended(path, Position(), most=20))


def test_times_are_those_of_the_log_and_not_of_the_piece(tmp_path: Path) -> None:
    path = tmp_path / "day.csv"
    write(path, 1, header=HEADER)
    (first,) = appended(path, Position())
    write(path, 7)
    (second,) = appended(path, first.place)
    (found,), unused = requests_of(second, path, "auto", None)
    assert found["sent_s"].to_list() == [1007.0] and not unused.rows


@pytest.mark.parametrize("beside", [True, False])
def test_a_rotated_log_is_read_to_its_end_and_then_the_new_one(tmp_path: Path, beside: bool) -> None:
    path = tmp_path / "day.csv"
    write(path, 1, 2, header=HEADER)
    _, place, _ = read(path, Position())
    write(path, 3)
    with path.open("a") as file:
        file.write(line(4).rstrip())  # the writer ended without a last line feed
    old = tmp_path / "day.csv.1" if beside else tmp_path / "archive" / "day.csv"
    old.parent.mkdir(exist_ok=True)
    path.rename(old)
    write(path, 5, header=HEADER)
    numbers, place, events = read(path, place)
    assert (numbers, events) == ([3, 4, 5] if beside else [5], ["rotated"])
    write(path, 6)
    assert read(path, place)[0] == [6]


def test_a_truncated_log_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "day.csv"
    write(path, 1, 2, header=HEADER)
    _, place, _ = read(path, Position())
    write(path, 8, header=HEADER, mode="w")
    assert read(path, place)[::2] == ([8], ["truncated"])
    # one that has grown beyond what was read is known by its beginning
    write(path, 9, 10, 11, 12, header=HEADER, mode="w")
    assert os.stat(path).st_size > place.offset
    assert read(path, place)[::2] == ([9, 10, 11, 12], ["truncated"])


def test_json_lines_have_no_header(tmp_path: Path) -> None:
    path = tmp_path / "day.jsonl"
    row = {"arrival_s": 5.0, "prompt_tokens": 101, "output_tokens": 3, "e2e_ms": 9.0}
    path.write_text(json.dumps(row) + "\n")
    numbers, place, _ = read(path, Position())
    with path.open("a") as file:
        file.write(json.dumps(row | {"prompt_tokens": 102}) + "\n")
    assert (numbers, place.header) == ([1], "") and read(path, place)[0] == [2]


def test_a_refusal_names_the_log_and_not_the_piece(tmp_path: Path) -> None:
    path = tmp_path / "day.csv"
    path.write_text("a,b\n1,2\n")
    (part,) = appended(path, Position())
    frames, unused = requests_of(part, path, "auto", None)
    place, reason = unused.first()
    assert not frames and (unused.rows, place) == (1, "line 2")
    assert str(path) in reason and not reason.count(str(tmp_path)) > reason.count(str(path))


ROW = {"arrival_s": 5.0, "prompt_tokens": 101, "output_tokens": 3, "e2e_ms": 9.0}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"arrival_s": -1.0}, "sent before 0"),
        ({"arrival_s": 3e9}, "years before or after"),
        ({"hash_block_tokens": 0}, "column hash_block_tokens: 1 row fails"),
        ({"prompt_tokens": "many"}, "a value that is not a number"),
        ({"prompt_tokens": None}, "without a prompt length"),
        (None, "cut off, or no record"),
    ],
)
@pytest.mark.parametrize("place", [0, 3, 6])
def test_a_bad_line_takes_no_other_with_it(bad: dict | None, reason: str, place: int, tmp_path: Path) -> None:
    path = tmp_path / "day.jsonl"
    rows = [json.dumps(ROW | {"prompt_tokens": 101 + number}) for number in range(6)]
    path.write_text("".join(f"{row}\n" for row in rows[:2]))
    _, start, _ = read(path, Position())
    rows.insert(place, "line that is cut" if bad is None else json.dumps(ROW | bad))
    with path.open("a") as file:
        file.write("".join(f"{row}\n" for row in rows))
    (part,) = appended(path, start)
    frames, unused = requests_of(part, path, "auto", None)
    assert sum(frame.height for frame in frames) == 6 and unused.rows == 1
    # alone, a line that is no JSON is taken for the header of a table
    reason = f"{path} is of no known format" if bad is None and place == 0 else reason
    assert unused.first()[0] == f"line {3 + place}" and reason in unused.first()[1]


def test_lines_count_in_the_file_whatever_the_piece(tmp_path: Path) -> None:
    path = tmp_path / "day.csv"
    write(path, 1, 2, header=HEADER)
    (first,) = appended(path, Position())
    with path.open("a") as file:
        file.write(f"{line(3)}-1,7,10,20,50\n{line(4)}x,y\n{line(5)}")
    (second,) = appended(path, first.place)
    frames, unused = requests_of(second, path, "auto", None)
    assert frames[0].height == 3 and sorted(place for _, place, _ in unused.counted.values()) == ["line 5", "line 7"]


def test_a_log_whose_first_line_was_cut_off_is_json_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "day.jsonl"
    path.write_text(f'"e2e_ms": 9.0}}\n{json.dumps(ROW)}\n')
    numbers, place, _ = read(path, Position())
    assert numbers == [1] and place.header == ""


def test_halving_ends_where_nothing_is_a_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "day.jsonl"
    path.write_text("nothing\n" * 5000)
    (part,) = appended(path, Position(offset=0, header=""))
    frames, unused = requests_of(part, path, "auto", None)
    assert not frames and unused.rows in (4999, 5000) and len(unused.counted) <= 64


@pytest.mark.parametrize("kind", SPECIAL)
def test_what_is_no_regular_file_is_not_watched(kind: str, tmp_path: Path, in_time: None) -> None:
    path = special_file(tmp_path / "day.jsonl", kind)
    with pytest.raises(InvalidInput, match=f"{path} {SPECIAL[kind]}"):
        list(appended(path, Position()))
