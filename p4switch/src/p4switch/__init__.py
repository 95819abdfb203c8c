"""p4switch: a v1model switch. P4_16 source in, packets and P4Runtime out."""
