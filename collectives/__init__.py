"""Pure data and functions of collective communication: network, plan, schedule, checker."""
