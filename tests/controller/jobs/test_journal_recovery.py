"""A journal that is damaged in the middle: what is kept, and that nothing is used twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsum.controller.jobs.job_state import JobState
from hopsum.controller.jobs.job_table import JobTable
from hopsum.controller.jobs.journal import FileJournal, JournalError
from hopsum.controller.jobs.journal_recovery import recover
from tests.controller.jobs.test_job_table import end, job
from tests.support.search import examples


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A journal: 1 has ended, 2 is there with two records, 3 is the newest."""
    path = tmp_path / "jobs"
    table = JobTable(path)
    end(table, job(table, "over"), JobState.FINISHED)
    changed = job(table, "changed")
    table.start(changed)
    job(table, "newest")
    return path


def lines(file: Path) -> list[bytes]:
    return file.read_bytes().splitlines(keepends=True)


def damage(file: Path, number: int, line: bytes = b"\0\0\0\n") -> None:
    """Put something in the place of a line, from 1."""
    kept = lines(file)
    kept[number - 1] = line
    file.write_bytes(b"".join(kept))


def test_a_whole_journal_stays_as_it_is(file: Path) -> None:
    before = file.read_bytes()
    file.write_bytes(before + b'{"number"')
    found = recover(file)
    assert (found.jobs, found.ended, found.kept_as) == (3, (), None)
    assert file.read_bytes() == before + b'{"number"'
    assert list(file.parent.iterdir()) == [file]


def test_jobs_that_were_not_over_have_failed_and_no_number_is_used_again(file: Path) -> None:
    last = len(lines(file))
    damage(file, last)
    damaged = file.read_bytes()
    with pytest.raises(JournalError, match=rf"jobs:{last}: .*`hopsum controller recover {file}`"):
        JobTable(file)
    found = recover(file)
    assert (found.damaged, found.ended) == ((last,), ("changed",))
    assert found.kept_as is not None
    assert found.kept_as.read_bytes() == damaged
    for _ in range(2):  # what is reserved outlives the rewriting at every start
        table = JobTable(file)
        assert [(each.number, each.state) for each in table] == [(1, "finished"), (2, "failed")]
        assert f"damaged at line {last}" in table.find(2).reason
        assert table.find(1).reason == ""
    # Job 3 was lost.
    assert table.next_number() == found.reserved + 1 >= 4
    again = job(table, "next")
    assert JobTable(file).next_number() == again.number + 1


def test_a_hole_over_many_records_reserves_a_number_for_each(file: Path) -> None:
    history, first, *holed = lines(file)
    hole = bytes(len(b"".join(holed)) - 1)
    file.write_bytes(history + first + hole + b"\n")
    found = recover(file)
    assert found.jobs == 1
    assert found.reserved >= 3
    assert JobTable(file).next_number() > 3


def test_a_recovered_journal_is_of_its_history(file: Path) -> None:
    before = JobTable(file).history
    damage(file, 3, b"damaged\n")
    recover(file)
    assert JobTable(file).history == before
    damage(file, 1, b"damaged\n")
    (file.parent / "jobs.damaged").unlink()
    recover(file)
    assert JobTable(file).history != before, "switches are emptied when nothing says whose"


def test_a_record_of_no_valid_job_counts_as_damage(file: Path) -> None:
    damage(file, 2, b'{"number": 2, "state": "lost"}\n')
    assert recover(file).damaged == (2,)


def test_the_journal_of_a_controller_is_left_alone(file: Path) -> None:
    with FileJournal(file).owned():
        assert recover(file).jobs == 3
        damage(file, 2)
        before = file.read_bytes()
        with pytest.raises(JournalError, match="another controller uses this journal"):
            recover(file)
        assert file.read_bytes() == before
    assert recover(file).damaged == (2,)


def test_the_damaged_file_is_kept_beside_the_one_that_a_link_leads_to(file: Path) -> None:
    damage(file, 2)
    damaged = file.read_bytes()
    link = file.with_name("link")
    link.symlink_to(file)
    assert recover(link).kept_as == file.with_name("jobs.damaged")
    assert file.with_name("jobs.damaged").read_bytes() == damaged
    assert recover(link).damaged == ()


def test_files_that_are_left_alone(file: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("hello\nworld\n")
    with pytest.raises(JournalError, match="it contains no records; is it a journal"):
        recover(text)
    assert text.read_text() == "hello\nworld\n"
    with pytest.raises(JournalError, match="none: cannot be read: No such file"):
        recover(tmp_path / "none")
    with pytest.raises(JournalError, match="/dev/zero: expected a file"):
        recover(Path("/dev/zero"))
    damage(file, 1)
    before = file.read_bytes()
    (tmp_path / "jobs.damaged").write_text("of the last time")
    with pytest.raises(JournalError, match=r"jobs\.damaged exists already; move it away"):
        recover(file)
    assert file.read_bytes() == before


@pytest.mark.slow
@settings(max_examples=examples(40, of=1000))
@given(
    first=st.integers(0, 1 << 20),
    length=st.integers(1, 1 << 14),
    by=st.sampled_from([b"\0", b"\n", b"\xff"]),
)
def test_no_damage_lets_a_number_be_used_twice(
    first: int, length: int, by: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """But for what it does to the last line's end, which is as after a crash.

    Nor is it text, which may join two strings of different records to a record that looks whole.
    """
    path = tmp_path_factory.mktemp("damage") / "jobs"
    table = JobTable(path)
    for number in range(1, 6):
        made = job(table, f"job-{number}")
        if number % 2:
            end(table, made, JobState.CANCELLED)
    content = bytearray(path.read_bytes())
    first %= len(content) - 1
    length = min(length, len(content) - 1 - first)
    content[first : first + length] = by * length
    path.write_bytes(content)
    try:
        found = recover(path)
    except JournalError:
        return  # nothing of it can be read
    after = JobTable(path)
    assert after.next_number() > 5
    if found.damaged:
        assert all(each.state.over for each in after)
