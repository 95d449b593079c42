"""One run at a time per device; the others wait in the order in which they came, whoever started them on this machine.

A waiting or running process holds the operating system's lock on a numbered ticket file of its own for as long as it lives.
The lowest number whose lock is held has its turn. So there is no server, no order to restore after a crash, and nothing to clean:
the lock of a killed process is free, and the next one to look removes its ticket. Making and checking tickets is serialised by
one more lock (`mutex`), held for microseconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from app.core.errors import RunError
from app.runs.locks import line_dir, lock_dir, try_lock, wait_lock

_TICKET = re.compile(r"\d{12}\.json")


@dataclass(frozen=True)
class Ticket:
    """Somebody in the line of a device."""

    number: int
    run_id: str
    run_folder: str
    pid: int | None
    since: float | None
    """`time.time()` when it joined the line."""


class Place:
    """A place in line. It is given up by `leave`, or by the operating system when the process ends."""

    def __init__(self, line: Line, number: int, descriptor: int) -> None:
        self.line = line
        self.number = number
        self._descriptor: int | None = descriptor

    def ahead(self) -> list[Ticket]:
        """Who comes first; the first of them is running. Empty when it is this place's turn."""
        return [ticket for ticket in self.line.tickets() if ticket.number < self.number]

    def touch(self) -> None:
        """Show that the ticket is in use to whatever cleans temporary folders by age."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.utime(self._descriptor)
                os.utime(self.line.folder / "mutex")

    def leave(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            with contextlib.suppress(OSError):
                self.line.ticket_path(self.number).unlink(missing_ok=True)
            os.close(descriptor)


class Line:
    """The line of one device."""

    def __init__(self, key: str, folder: Path | None = None) -> None:
        """Args:
        key: `cpu`, or the UUID of a GPU.
        folder: where lines live; default `line_dir(key)`.
        """
        self.key = key
        self.folder = (folder or line_dir(key)) / re.sub(r"[^A-Za-z0-9._-]", "_", key)

    def join(self, run_id: str, run_folder: Path) -> Place:
        """Take a place at the end.

        Raises:
            RunError: the folder of the queue cannot be written to.
        """
        try:
            with self._mutex():
                number, descriptor = self._new_ticket()
                try_lock(descriptor)  # a file that nobody else has seen: it is free
                entry = {"run_id": run_id, "run_folder": str(run_folder), "pid": os.getpid(), "since": time.time()}
                with contextlib.suppress(OSError):  # a full disk must not keep a run out of the queue
                    os.write(descriptor, json.dumps(entry).encode())
        except OSError as error:
            why = error.strerror or error
            raise RunError(f"{self.folder}: the queue of runs cannot be written to ({why}). Set TWOPATH_LOCK_DIR.") from None
        return Place(self, number, descriptor)

    def _new_ticket(self) -> tuple[int, int]:
        """(number, open file) of a ticket behind all others. Call with the mutex held."""
        number = max((ticket.number for ticket in self._living()), default=0) + 1
        while True:
            try:
                descriptor = os.open(self.ticket_path(number), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:  # left by a process of another user, whose file only that user may remove
                number += 1
                continue
            self._share(descriptor)
            return number, descriptor

    def _share(self, descriptor: int) -> None:
        """Open a new file to whom the folder of lines is open to: where several users share it, each must see the others' locks."""
        os.fchmod(descriptor, 0o600 | (_shared_bits(self.folder) & 0o066))

    def tickets(self) -> list[Ticket]:
        """Everybody in line, first come first. Tickets whose holder is gone are removed on the way."""
        if not self.folder.is_dir():
            return []
        with self._mutex():
            return self._living()

    def ticket_path(self, number: int) -> Path:
        return self.folder / f"{number:012d}.json"

    def _living(self) -> list[Ticket]:
        found = []
        for path in sorted(self.folder.iterdir()):
            if _TICKET.fullmatch(path.name) and (ticket := _held_ticket(path)):
                found.append(ticket)
        return found

    @contextlib.contextmanager
    def _mutex(self) -> Iterator[None]:
        self._made()
        try:
            # Without O_CREAT first: in a folder that all may write to, the system refuses to "create" somebody else's file.
            descriptor = _opened(self.folder / "mutex")
        except FileNotFoundError:
            descriptor = os.open(self.folder / "mutex", os.O_RDWR | os.O_CREAT, 0o600)
            self._share(descriptor)
        try:
            wait_lock(descriptor)
            yield
        finally:
            os.close(descriptor)

    def _made(self) -> None:
        """The line's folder is there; as open to others as the folder of lines is."""
        if self.folder.is_dir():
            return
        self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self.folder.mkdir(mode=0o700)
        except FileExistsError:
            return
        self.folder.chmod(0o700 | _shared_bits(self.folder.parent))


def _shared_bits(folder: Path) -> int:
    """Permissions of group and others, sticky and set-group bits of a folder that others may write to; 0 where it is private."""
    mode = folder.stat().st_mode
    return mode & 0o3077 if mode & 0o022 else 0


def _opened(path: Path) -> int:
    """An open file to lock; for reading where it is another user's."""
    try:
        return os.open(path, os.O_RDWR)
    except PermissionError:
        return os.open(path, os.O_RDONLY)


def lines(folder: Path | None = None) -> list[Line]:
    """The lines that exist on this machine."""
    place = folder or lock_dir()
    # What else lies in a folder that somebody chose is none of ours.
    return [Line(child.name, place) for child in sorted(place.iterdir()) if (child / "mutex").is_file()]


def _held_ticket(path: Path) -> Ticket | None:
    """The ticket if its holder lives; else it is removed. Call with the mutex held."""
    try:
        descriptor = _opened(path)
    except OSError:  # its holder just left
        return None
    try:
        if try_lock(descriptor):
            with contextlib.suppress(OSError):  # another user's, in a folder where only owners remove
                path.unlink(missing_ok=True)
            return None
        return _read_ticket(int(path.stem), os.read(descriptor, 65536))
    finally:
        os.close(descriptor)


def _read_ticket(number: int, content: bytes) -> Ticket:
    try:
        entry = json.loads(content)
        return Ticket(number, str(entry["run_id"]), str(entry["run_folder"]), int(entry["pid"]), float(entry["since"]))
    except (ValueError, KeyError, TypeError):  # written on a full disk
        return Ticket(number, "unknown", "", None, None)
