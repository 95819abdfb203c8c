"""p4switch: a switch for v1model and PSA. P4_16 source in, packets and P4Runtime out."""
