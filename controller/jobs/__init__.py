"""Jobs: queue, journal, placement, priorities, re-planning and failover."""
