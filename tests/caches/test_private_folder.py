"""Folders that one user alone can write: whose files are believed, what is left as it is, and what is refused."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelsight.caches import private_folder
from kernelsight.caches.private_folder import Damaged, PrivateFolder

ROOT = Path(__file__).resolve().parents[2]
KEY, OTHER = "0" * 64, "1" * 64
LIMIT = 2**20
ANOTHER = os.getuid() + 1  # a user
DAMAGES = {
    "a bit of the digest": lambda content: bytes([content[0] ^ 1]) + content[1:],
    "a bit of the content": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    "empty": lambda content: b"",
    "cut to half": lambda content: content[: len(content) // 2],
    "cut within the digest": lambda content: content[:7],
    "longer": lambda content: content + b"x",
    "something else": lambda content: b"something else",
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "above" / "mine"


def names(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


def ended_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_what_was_written_is_read(place: Path) -> None:
    PrivateFolder(place, LIMIT).write(KEY, b"rows")
    again = PrivateFolder(place, LIMIT)
    assert (again.read(KEY, bytes.decode), again.read(OTHER, bytes.decode)) == ("rows", None)
    assert names(place) == [KEY] and place.stat().st_mode & 0o777 == 0o700
    assert (place / KEY).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_removed_alone(place: Path, damage: Callable[[bytes], bytes]) -> None:
    folder = PrivateFolder(place, LIMIT)
    for key in (KEY, OTHER):
        folder.write(key, b"rows")
    (place / KEY).write_bytes(damage((place / KEY).read_bytes()))
    with pytest.raises(Damaged):
        folder.read(KEY, bytes)
    assert names(place) == [OTHER] and folder.read(OTHER, bytes) == b"rows"


def test_a_file_under_another_key_is_damaged(place: Path) -> None:
    folder = PrivateFolder(place, LIMIT)
    folder.write(KEY, b"rows")
    (place / KEY).rename(place / OTHER)
    with pytest.raises(Damaged):
        folder.read(OTHER, bytes)


@pytest.mark.parametrize("error", [RecursionError, ValueError, MemoryError, OSError])
def test_what_cannot_be_decoded_is_damaged(place: Path, error: type[Exception]) -> None:
    folder = PrivateFolder(place, LIMIT)
    folder.write(KEY, b"garbage")

    def decode(content: bytes) -> None:
        raise error(content)

    with pytest.raises(Damaged):
        folder.read(KEY, decode)
    assert names(place) == []


def test_a_file_that_is_too_large_is_damaged(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = PrivateFolder(place, LIMIT)
    folder.write(KEY, b"rows")
    monkeypatch.setattr(private_folder, "LARGEST_FILE", 10)
    with pytest.raises(Damaged):
        folder.read(KEY, bytes)
    folder.write(KEY, bytes(10))
    assert names(place) == []


# ---------------------------------------------------------------- what is not ours


def put_pipe(path: Path) -> None:
    os.mkfifo(path)


def put_link(path: Path) -> None:
    (path.parent / "aim").write_bytes(b"theirs")
    path.symlink_to("aim")


def put_broken_link(path: Path) -> None:
    path.symlink_to("nowhere")


def put_file_of_another_user(path: Path) -> None:
    """As root give it away; any other user is somebody else from now on."""
    path.write_bytes(b"theirs")
    if os.getuid() == 0:
        os.chown(path, ANOTHER, ANOTHER)
    else:
        os.getuid = lambda: ANOTHER


def put_file_that_others_can_write(path: Path) -> None:
    PrivateFolder(path.parent, LIMIT).write(path.name, b"perhaps theirs")
    path.chmod(0o606)


THINGS = [
    *(Path.mkdir, put_pipe, put_link, put_broken_link),
    *(put_file_of_another_user, put_file_that_others_can_write),
]


@pytest.mark.parametrize("put", THINGS)
def test_other_things_with_our_names_are_left(
    place: Path, put: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", os.getuid)  # set back at the end
    folder = PrivateFolder(place, 1)
    put(place / KEY)
    before = names(place), (place / KEY).lstat()
    handles = os.listdir("/proc/self/fd") if Path("/proc/self/fd").exists() else []
    assert folder.read(KEY, bytes) is None
    folder.write(KEY, b"rows")
    folder.shrink()
    assert folder.sizes() == []
    folder.clear()
    after = (place / KEY).lstat()
    assert (names(place), after.st_ino, after.st_mode) == (before[0], before[1].st_ino, before[1].st_mode)
    assert not handles or len(os.listdir("/proc/self/fd")) == len(handles)


def test_files_of_other_names_are_left(place: Path) -> None:
    folder = PrivateFolder(place, 1, ending=".nbc")
    others = ["thesis.tar", KEY, f"{KEY}.nbc.old", f"{KEY[1:]}.nbc", f"{KEY.replace('0', 'g')}.nbc", f".{KEY}.nbc.x.ab"]
    for name in others:
        (place / name).write_bytes(bytes(100))
    folder.write(OTHER, bytes(100))
    folder.shrink()
    folder.clear()
    assert names(place) == sorted(others)


def test_the_files_that_were_not_read_for_longest_go_first(place: Path) -> None:
    folder, keys = PrivateFolder(place, LIMIT), [64 * digit for digit in "0123"]
    for number, key in enumerate(keys):
        folder.write(key, bytes(68))  # 100 with its digest
        os.utime(place / key, (number, number))
    folder.read(keys[0], bytes)
    PrivateFolder(place, 250).shrink()
    assert names(place) == [keys[0], keys[3]]


def test_a_long_process_keeps_the_folder_small(place: Path) -> None:
    folder = PrivateFolder(place, 8_000)
    for number in range(100):
        folder.write(f"{number:064}", bytes(500))
    assert sum(folder.sizes()) <= 8_000 + 1_000 + 3 * 532


def test_drafts_of_processes_that_ended_are_removed(place: Path) -> None:
    PrivateFolder(place, LIMIT).write(KEY, b"rows")
    ended = ended_process()
    gone = [f".{KEY}.{ended}.0a1b", f".{KEY}.{ended}"]
    stays = [f".{KEY}.{os.getpid()}.0a1b", f".{KEY}.1", f".notes.{ended}", f".{KEY}.{ended}.draft"]
    for name in (*gone, *stays):
        (place / name).write_bytes(b"half")
    folder = PrivateFolder(place, LIMIT)
    folder.shrink()
    assert names(place) == sorted([*stays, KEY])
    folder.clear()
    assert names(place) == sorted(stays)


def test_a_full_disk_leaves_no_draft(place: Path) -> None:
    folder = PrivateFolder(place, LIMIT)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        folder.write(KEY, bytes(5000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert names(place) == [] and folder.read(KEY, bytes) is None


def test_a_folder_that_was_removed_holds_nothing(place: Path) -> None:
    folder = PrivateFolder(place, LIMIT)
    folder.write(KEY, b"rows")
    folder.clear()
    place.rmdir()
    folder.write(KEY, b"rows")
    folder.shrink()
    assert folder.read(KEY, bytes) is None and not place.exists()


def test_a_folder_put_in_its_place_is_not_believed(place: Path) -> None:
    folder = PrivateFolder(place, LIMIT)
    folder.write(KEY, b"rows")
    place.parent.rename(place.parent.with_name("renamed"))
    planted = PrivateFolder(place, LIMIT)
    planted.write(KEY, b"poison")
    planted.write(OTHER, b"poison")
    assert (folder.read(KEY, bytes), folder.read(OTHER, bytes)) == (b"rows", None)
    folder.clear()
    assert names(place) == [KEY, OTHER]


# ---------------------------------------------------------------- which folders are fit


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777, 0o1777])
def test_a_folder_that_others_can_write_is_refused(place: Path, mode: int) -> None:
    PrivateFolder(place, LIMIT)
    place.chmod(mode)
    with pytest.raises(PermissionError, match="other users can write it") as refusal:
        PrivateFolder(place, LIMIT)
    assert refusal.value.filename == str(place)
    place.chmod(0o755)
    PrivateFolder(place, LIMIT)


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_nothing_is_made_below_a_folder_that_others_can_write(place: Path, mode: int) -> None:
    place.parent.mkdir()
    place.parent.chmod(mode)
    with pytest.raises(PermissionError) as refusal:
        PrivateFolder(place / "deeper", LIMIT)
    assert refusal.value.filename == str(place.parent) and names(place.parent) == []
    place.parent.chmod(0o1777)  # as /tmp: nobody else can rename what is ours
    PrivateFolder(place / "deeper", LIMIT).write(KEY, b"rows")


def test_a_folder_above_that_others_own_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = PrivateFolder(place, LIMIT)
    folder.write(KEY, b"rows")
    if os.getuid() == 0:
        os.chown(place.parent, ANOTHER, ANOTHER)
    else:
        monkeypatch.setattr(os, "getuid", lambda: ANOTHER)
    with pytest.raises(PermissionError, match=r"it belongs to another user \(\d+\)"):
        PrivateFolder(place, LIMIT)


def test_a_folder_of_another_user_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    PrivateFolder(place, LIMIT)
    if os.getuid() == 0:
        os.chown(place, ANOTHER, ANOTHER)
    else:
        monkeypatch.setattr(os, "getuid", lambda: ANOTHER)
    with pytest.raises(PermissionError, match=r"it belongs to another user \(\d+\)"):
        PrivateFolder(place, LIMIT)


def test_links_on_the_way_are_followed_where_their_owner_is_believed(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "relative").symlink_to("../disk")
    (tmp_path / "home" / "absolute").symlink_to(tmp_path / "home" / "relative")
    folder = PrivateFolder(tmp_path / "home" / "absolute" / "mine", LIMIT)
    folder.write(KEY, b"rows")
    assert names(tmp_path / "disk" / "mine") == [KEY]
    if os.getuid() == 0:
        os.chown(tmp_path / "home" / "absolute", ANOTHER, ANOTHER, follow_symlinks=False)
        with pytest.raises(PermissionError, match="it belongs to another user"):
            PrivateFolder(tmp_path / "home" / "absolute" / "mine", LIMIT)


def test_a_link_leads_only_to_folders_that_are_fit(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "open")
    (tmp_path / "circle").symlink_to("circle")
    for path, error in (("link/mine", PermissionError), ("circle/mine", OSError)):
        with pytest.raises(error):
            PrivateFolder(tmp_path / path, LIMIT)
    assert names(tmp_path / "open") == []


def test_a_path_with_steps_back_and_a_relative_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = PrivateFolder(Path("a") / ".." / "b", LIMIT)
    monkeypatch.chdir("/")
    folder.write(KEY, b"rows")
    assert names(tmp_path / "b") == [KEY]


@pytest.mark.parametrize("put", [Path.touch, put_pipe, put_broken_link])
def test_what_is_no_folder_is_refused(place: Path, put: Callable[[Path], None]) -> None:
    place.parent.mkdir()
    put(place)
    if put is put_broken_link:  # leads to a folder that is made
        PrivateFolder(place, LIMIT)
        assert (place.parent / "nowhere").is_dir()
    else:
        with pytest.raises(NotADirectoryError) as refusal:
            PrivateFolder(place, LIMIT)
        assert refusal.value.filename == str(place)


def test_handles_are_returned_to_the_system(place: Path) -> None:
    folder = PrivateFolder(place, LIMIT)
    handle = folder.handle
    del folder
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handle)


def test_without_handles_of_folders_paths_are_used(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_folder, "_HAS_HANDLES", False)
    folder = PrivateFolder(place, 100)
    assert folder.handle is None
    folder.write(KEY, bytes(90))
    folder.write(OTHER, bytes(8))
    folder.shrink()
    assert (folder.read(KEY, bytes), folder.read(OTHER, bytes)) == (None, bytes(8))
    folder.clear()
    assert names(place) == []


# ---------------------------------------------------------------- processes beside each other

WRITER = """
import sys
from pathlib import Path
from kernelsight.caches.private_folder import Damaged, PrivateFolder
folder = PrivateFolder(Path(sys.argv[1]), int(sys.argv[2]))
folder.shrink()
sys.stdin.read(1)  # all begin together
for turn in range(20):
    for digit in "0123456789abcdef":
        content = folder.read(64 * digit, bytes)
        assert content in (None, 2000 * digit.encode())
        folder.write(64 * digit, 2000 * digit.encode())
print("right")
"""


@pytest.mark.parametrize("limit", [LIMIT, 20_000])
@pytest.mark.whole
def test_eight_processes_write_the_same_files(place: Path, limit: int) -> None:
    words = [sys.executable, "-c", WRITER, str(place), str(limit)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    running = [subprocess.Popen(words, **pipes, env=environment) for _ in range(8)]
    for process in running:
        process.stdin.write("!")
        process.stdin.flush()
    for process in running:
        assert process.communicate() == ("right\n", "")
    assert not [name for name in names(place) if name.startswith(".")]
    assert limit != LIMIT or len(names(place)) == 16
