"""The functions behind `import hopsum`: networks, plans, runs, schedules, a running cluster."""
