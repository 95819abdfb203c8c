"""Collective communication as data: plans, schedules, their checkers and executor."""
