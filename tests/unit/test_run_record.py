"""What a run notes of itself, and how it is undone."""

from __future__ import annotations

from pathlib import Path

from mininet_topos.record import RunRecord, stop_left_over


def test_a_setting_comes_back(tmp_path: Path) -> None:
    setting = tmp_path / "setting"
    setting.write_text("0\n")
    record = RunRecord.create(tmp_path / "runs")
    record.change_setting(setting, "1")
    assert setting.read_text() == "1"
    record.restore_settings()
    assert setting.read_text() == "0"


def test_a_setting_that_is_as_wanted_stays(tmp_path: Path) -> None:
    setting = tmp_path / "setting"
    setting.write_text("1\n")
    record = RunRecord.create(tmp_path / "runs")
    record.change_setting(setting, "1")
    assert record.restore_settings() == []
    assert setting.read_text() == "1\n"


def test_a_setting_that_does_not_exist_is_left_out(tmp_path: Path) -> None:
    record = RunRecord.create(tmp_path / "runs")
    record.change_setting(tmp_path / "nothing", "1")
    assert record.restore_settings() == []


def test_stop_gives_settings_of_a_crashed_run_back(tmp_path: Path) -> None:
    setting = tmp_path / "setting"
    setting.write_text("0")
    record = RunRecord.create(tmp_path / "runs")
    record.change_setting(setting, "1")
    record.owner_started -= 1  # another process had this id when the run began
    record.write()
    assert stop_left_over(tmp_path / "runs") == [f"set {setting} back to 0"]
    assert setting.read_text() == "0"
    assert not record.path.exists()
