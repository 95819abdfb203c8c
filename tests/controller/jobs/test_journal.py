"""A journal on a disk that fills up, and after a crash."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsum.controller.jobs.journal import FileJournal, JournalError, Record, UnrecordedError
from hopsum.protocol.errors import InputError
from hopsum.simulation.disk import VirtualDisk

FILE = Path("jobs")
RECORDS: list[Record] = [{"number": number, "text": "x" * number} for number in range(5)]


@pytest.fixture
def journal(tmp_path: Path) -> FileJournal:
    return three_records(FileJournal(tmp_path / "jobs"))


@pytest.fixture
def disk() -> VirtualDisk:
    return VirtualDisk()


@pytest.fixture
def virtual(disk: VirtualDisk) -> FileJournal:
    return three_records(FileJournal(FILE, disk=disk))


def three_records(journal: FileJournal) -> FileJournal:
    for record in RECORDS[:3]:
        journal.append(record)
    return journal


def read(disk: VirtualDisk) -> list[Record]:
    """Return the records as a controller that starts now reads them."""
    return FileJournal(FILE, disk=disk).read()


@pytest.mark.parametrize("room", [0, 1, 9, 23])
def test_an_incomplete_record_is_truncated(
    virtual: FileJournal, disk: VirtualDisk, room: int
) -> None:
    before = disk.content()
    disk.fill(room)
    with pytest.raises(UnrecordedError, match="jobs cannot be written: No space left on device"):
        virtual.append(RECORDS[3])
    assert disk.content() == before
    disk.free()
    virtual.append(RECORDS[4])
    assert read(disk) == [*RECORDS[:3], RECORDS[4]]
    assert virtual.lines == 4


def test_the_rest_of_a_record_is_cut_off_later_if_it_cannot_be_at_once(
    virtual: FileJournal, disk: VirtualDisk
) -> None:
    disk.tear(9, lambda: None)
    with pytest.raises(UnrecordedError):
        virtual.append(RECORDS[3])
    assert disk.read(FILE).endswith(b'{"number"')
    disk.free()
    virtual.append(RECORDS[4])
    assert read(disk) == [*RECORDS[:3], RECORDS[4]]


def test_a_journal_that_cannot_be_rewritten_is_as_it_was(
    virtual: FileJournal, disk: VirtualDisk
) -> None:
    disk.fill(5)
    with pytest.raises(UnrecordedError, match="No space left"):
        virtual.rewrite(RECORDS[3:])
    assert read(disk) == RECORDS[:3]
    assert [*disk.content()] == [FILE]
    disk.free()
    virtual.append(RECORDS[3])
    virtual.rewrite(RECORDS[3:])
    virtual.append(RECORDS[0])
    assert read(disk) == [*RECORDS[3:], RECORDS[0]]


@pytest.mark.slow
@given(cut=st.integers(min_value=0, max_value=120), zeros=st.integers(0, 3))
def test_journals_after_a_crash(
    cut: int, zeros: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Wherever it cuts, the whole records are read, and what follows is not glued to the rest."""
    journal = FileJournal(tmp_path_factory.mktemp("crash") / "jobs")
    for record in RECORDS:
        journal.append(record)
    content = journal.file.read_bytes()[:cut]
    journal.file.write_bytes(content + b"\0" * zeros)
    again = FileJournal(journal.file)
    count = content.count(b"\n")
    # A record without its end of line is a file of something else, if there is nothing before it.
    if count == 0 and content.endswith(b"}"):
        with pytest.raises(JournalError):
            again.read()
        return
    assert again.read() == RECORDS[:count]
    again.append({"new": 1})
    assert FileJournal(journal.file).read() == [*RECORDS[:count], {"new": 1}]


@pytest.mark.parametrize(
    "content",
    [
        b"seven\n",
        b"seven",
        b"[1]\n",
        b'{"a": 1}\nseven\n{"b": 1}\n',
        b'{"a": 1}\nseven',
        b'{"a": "a file of one line"}',
        b"\xff\xfe\n",
        b"\0\n",
        b"[" * 100_000 + b"\n",
    ],
)
def test_files_other_than_journals_are_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "jobs").write_bytes(content)
    with pytest.raises(JournalError, match=r"jobs:\d: .* expected a record"):
        FileJournal(tmp_path / "jobs").read()
    assert (tmp_path / "jobs").read_bytes() == content


def test_journals_must_be_regular_files(tmp_path: Path) -> None:
    for path in (tmp_path, Path("/dev/zero")):
        with pytest.raises(JournalError, match="expected a file"):
            FileJournal(path).read()
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match="cannot be read: Not a directory"):
        FileJournal(tmp_path / "file" / "jobs").read()
    with pytest.raises(UnrecordedError, match="cannot be written: Not a directory"):
        FileJournal(tmp_path / "file" / "jobs").append({})


def test_a_record_is_on_the_disk_before_it_counts(
    journal: FileJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_size))
    journal.append(RECORDS[3])
    assert synced == [journal.file.stat().st_size]
    journal.rewrite(RECORDS)
    assert journal.file.stat().st_size in synced[1:]
    assert len(synced) == 3  # and the folder, for the file's name


def test_a_write_that_ends_in_the_middle(journal: FileJournal) -> None:
    """The kernel's own short write: the limit of a file's size stands for a full disk."""
    before = journal.file.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 9, hard))
    try:
        with pytest.raises(UnrecordedError, match="jobs cannot be written: File too large"):
            journal.append(RECORDS[3])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert journal.file.read_bytes() == before


def test_a_journal_is_its_users_alone(journal: FileJournal) -> None:
    """It has the keys of jobs; also where it is written anew."""
    assert journal.file.stat().st_mode & 0o777 == 0o600
    journal.rewrite(RECORDS[:1])
    assert journal.file.stat().st_mode & 0o777 == 0o600


def test_a_journal_has_one_owner(journal: FileJournal, tmp_path: Path) -> None:
    """By any path: what another has written would be taken for the rest of a record."""
    (tmp_path / "link").symlink_to(journal.file)
    owned = journal.owned()
    with owned:
        for name in ("jobs", "link"):
            second = FileJournal(tmp_path / name)
            words = rf"{name}: another controller uses this journal: .*jobs\.lock is locked by .*"
            with pytest.raises(JournalError, match=rf"{words}process {os.getpid()}.*end it first"):
                second.owned().__enter__()
            assert second.read() == RECORDS[:3]
        journal.append(RECORDS[3])
    with FileJournal(tmp_path / "link").owned():
        pass
    assert {file.name for file in tmp_path.iterdir()} == {"jobs", "link"}


def test_a_link_to_a_journal_stays_one(journal: FileJournal, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link"
    link.symlink_to("../jobs")
    FileJournal(link).rewrite(RECORDS[3:])
    assert link.is_symlink()
    assert journal.read() == RECORDS[3:]


def test_what_is_no_journal_gets_no_lock_beside_it(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="expected a file"):
        FileJournal(tmp_path).owned().__enter__()
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file: expected a folder, found a file"):
        FileJournal(tmp_path / "file" / "jobs").owned().__enter__()
    assert not tmp_path.with_name(tmp_path.name + ".lock").exists()
    with FileJournal(tmp_path / "new" / "jobs").owned():
        assert (tmp_path / "new" / "jobs.lock").exists()
