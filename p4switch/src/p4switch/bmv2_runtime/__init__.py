"""BMv2's run-time interface, that of simple_switch_CLI and p4-utils: entries have handles."""
