"""State of switches: rules as data, and the P4Runtime driver that installs them."""
