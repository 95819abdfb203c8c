"""What switches hold: rules as data, and the P4Runtime driver that installs them."""
