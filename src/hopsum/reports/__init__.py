"""Plans, runs and networks as tables, JSON, pictures and pages."""
