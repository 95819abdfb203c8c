"""Bytes on links and seconds of plans and schedules: closed forms, and max-min fair flows."""
