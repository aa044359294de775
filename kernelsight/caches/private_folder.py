"""Cache folders that only their user can write, with files that carry a SHA-256 digest of their content.

What is read from such a folder is trusted, and machine code from it is run. So every folder on the path from the root
is checked, and from then on the folder is accessed by its handle: another one put at its path later changes nothing.
Only files whose names this class gives are read, replaced or removed, whatever else is in the folder.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Read = TypeVar("Read")

LARGEST_FILE = 64 * 2**20
MOST_LINKS = 40
_DIGEST_BYTES = hashlib.sha256().digest_size
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
# some systems, such as Windows, have neither owners and access rights in the mode, nor handles of folders
_HAS_OWNERS = hasattr(os, "getuid")
_HAS_HANDLES = os.open in os.supports_dir_fd


class Damaged(Exception):
    """A file's content is not what was written; the file was removed, and has to be made again."""


class PrivateFolder:
    """A folder that no other user can write, created where it does not exist.

    Its files are named by 64 hexadecimal digits and ``ending``; the least recently read ones are removed while all
    together have more than ``limit`` bytes. OSError: it cannot be created, or another user could change it or a folder
    above it.
    """

    def __init__(self, path: Path, limit: int, ending: str = "") -> None:
        self.handle: int | None = None
        self.path, self.limit, self._ending = path, limit, ending
        self._name = re.compile(rf"[0-9a-f]{{64}}{re.escape(ending)}")
        self._draft = re.compile(rf"\.{self._name.pattern}\.(\d+)(\.[0-9a-f]+)?")
        # bytes written since the folder's size was last measured; None: not measured, as by processes that only read
        self._written: int | None = None
        self.handle = _open(path)

    def __del__(self) -> None:
        if self.handle is not None:
            os.close(self.handle)

    def read(self, key: str, decode: Callable[[bytes], Read]) -> Read | None:
        """Return the decoded content of a key's file; None where there is none. Damaged: it is not what was written."""
        name = key + self._ending
        try:
            content = self._content(name)
        except OSError:
            return None
        if content is None:
            return None
        try:
            return checked(key, content, decode)
        except Damaged:
            self._remove(name)
            raise Damaged(f"{self.path / name} is damaged") from None

    def write(self, key: str, content: bytes) -> None:
        """Write a key's file atomically; nothing where the disk is full, or something else has the file's name."""
        name = key + self._ending
        if self._written is None:
            self.shrink()
        with contextlib.suppress(OSError):
            if len(content) < LARGEST_FILE and self._is_free(name):
                self._replace(name, _digest(key, content), content)
        self._written += len(content)
        if self._written > self.limit // 8:
            self.shrink()

    def shrink(self) -> None:
        """Remove drafts of processes that ended, and the least recently read files, down to the limit."""
        self._written = 0
        with contextlib.suppress(OSError):
            files, drafts = self._our_files()
            for name in drafts:
                self._remove(name)
            size = sum(status.st_size for status in files.values())
            for name, status in sorted(files.items(), key=lambda item: item[1].st_mtime):
                if size <= self.limit:
                    return
                self._remove(name)
                size -= status.st_size

    def sizes(self) -> list[int]:
        """Return the size of each of our files, in bytes. OSError: the folder cannot be read any more."""
        return [status.st_size for status in self._our_files()[0].values()]

    def clear(self) -> None:
        """Remove our files, and drafts of processes that ended. OSError: the folder cannot be read any more."""
        files, drafts = self._our_files()
        for name in (*files, *drafts):
            self._remove(name)

    def _our_files(self) -> tuple[dict[str, os.stat_result], list[str]]:
        """Return our files by name, and the names of drafts of processes that ended."""
        files, drafts = {}, []
        with os.scandir(self.path if self.handle is None else self.handle) as entries:
            for entry in entries:
                draft = self._draft.fullmatch(entry.name)
                if not draft and not self._name.fullmatch(entry.name):
                    continue
                with contextlib.suppress(FileNotFoundError):  # another process may remove it now
                    status = entry.stat(follow_symlinks=False)
                    if draft and _is_own(status) and not _is_running(int(draft[1])):
                        drafts.append(entry.name)
                    elif not draft and _is_own(status):
                        files[entry.name] = status
        return files, drafts

    def _content(self, name: str) -> bytes | None:
        """Return the bytes of one of our files and mark it as read now; None where something else has that name."""
        handle = os.open(self._at(name), _READ, dir_fd=self.handle)
        try:
            status = os.fstat(handle)
            if not _is_own(status):
                return None
            if os.utime in os.supports_fd:
                os.utime(handle)
            with open(handle, "rb", closefd=False) as file:
                return file.read() if status.st_size <= LARGEST_FILE else b""
        finally:
            os.close(handle)

    def _is_free(self, name: str) -> bool:
        """Return whether we may write a name: nothing, or a file of ours, has it."""
        try:
            return _is_own(os.stat(self._at(name), dir_fd=self.handle, follow_symlinks=False))
        except FileNotFoundError:
            return True

    def _replace(self, name: str, *contents: bytes) -> None:
        """Write a file's contents, in order, to a draft that then replaces it."""
        draft = f".{name}.{os.getpid()}.{secrets.token_hex(4)}"
        handle = os.open(self._at(draft), _CREATE, 0o600, dir_fd=self.handle)
        try:
            with open(handle, "wb") as file:
                file.writelines(contents)
            os.replace(self._at(draft), self._at(name), src_dir_fd=self.handle, dst_dir_fd=self.handle)
        except BaseException:
            self._remove(draft)
            raise

    def _remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._at(name), dir_fd=self.handle)

    def _at(self, name: str) -> str:
        """Return a file's path for system calls: relative to the folder's handle where there is one."""
        return str(self.path / name) if self.handle is None else name


def checked(key: str, content: bytes, decode: Callable[[bytes], Read]) -> Read:
    """Verify the digest of a file's content under a key, and decode it. Damaged: it is not what was written."""
    try:
        if content[:_DIGEST_BYTES] != _digest(key, memoryview(content)[_DIGEST_BYTES:]):
            raise ValueError("another digest")
        return decode(content[_DIGEST_BYTES:])
    except Exception:  # whatever a decoder raises
        raise Damaged(f"{key} is damaged") from None


def stamped(key: str, content: bytes) -> bytes:
    """Return a file's content under a key as ``checked`` takes it: its digest first."""
    return _digest(key, content) + content


def user_cache() -> Path:
    """Return the folder of this user's caches; OSError: the user has no home folder."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        raise OSError(errno.ENOENT, "this user has no home folder") from None


def _digest(key: str, content: bytes | memoryview) -> bytes:
    """Return the SHA-256 of a file's key and content, so that a file cannot be moved to another key."""
    digest = hashlib.sha256(f"{key}\n".encode())
    digest.update(content)
    return digest.digest()


def _is_own(status: os.stat_result) -> bool:
    """Return whether a path is a regular file of this user, which no other user can write."""
    if not stat.S_ISREG(status.st_mode):
        return False
    return not _HAS_OWNERS or (status.st_uid == os.getuid() and not status.st_mode & 0o022)


def _is_running(process: int) -> bool:
    if os.name == "nt":  # where signal 0 would end it
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # that of another user
        return True
    return True


def _open(path: Path) -> int | None:
    """Open a folder, after each folder and link on its path was checked from the root on; what is missing is made.

    What was checked stays as it was: in these folders only root and this user can replace it. Symbolic links are
    followed where one of both owns them, so that no other user chooses where they lead.
    """
    if not _HAS_HANDLES:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return None
    root, *names = path.absolute().parts
    reached, links, waiting = Path(root), 0, names[::-1]
    while waiting:
        _check_folder(os.stat(reached), reached)
        step = reached / waiting.pop()
        status = _status_of(step, last=not waiting)
        if not stat.S_ISLNK(status.st_mode):
            reached = reached.parent if step.name == ".." else step
            continue
        _check_owner(status, step)
        links += 1
        if links > MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(step))
        target = Path(os.readlink(step))
        reached = Path(root) if target.is_absolute() else reached
        waiting += reversed(target.parts[1:] if target.is_absolute() else target.parts)
    handle = os.open(reached, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _check_last(handle, reached)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _status_of(path: Path, last: bool) -> os.stat_result:
    """Return the status of a folder or link; a folder that does not exist is created."""
    with contextlib.suppress(FileNotFoundError):
        return os.lstat(path)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700 if last else 0o755)
    return os.lstat(path)


def _check_owner(status: os.stat_result, path: Path) -> None:
    if status.st_uid not in (0, os.getuid()):
        raise OSError(errno.EPERM, f"it belongs to another user ({status.st_uid})", str(path))


def _check_folder(status: os.stat_result, path: Path) -> None:
    """Refuse a folder in which others may rename or replace our files: sticky ones, such as /tmp, forbid that."""
    _check_owner(status, path)
    if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
        raise OSError(errno.EPERM, f"other users can write it (mode {stat.S_IMODE(status.st_mode):o})", str(path))


def _check_last(handle: int, path: Path) -> None:
    """Refuse a folder that this user cannot write, or not alone."""
    status = os.fstat(handle)
    if status.st_uid != os.getuid():
        raise OSError(errno.EPERM, f"it belongs to another user ({status.st_uid})", str(path))
    if status.st_mode & 0o022:
        raise OSError(errno.EPERM, f"other users can write it (mode {stat.S_IMODE(status.st_mode):o})", str(path))
    if not os.access(".", os.W_OK, dir_fd=handle):
        raise OSError(errno.EACCES, "it cannot be written", str(path))
