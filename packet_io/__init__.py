"""Frames in batches: AF_PACKET sockets, in-process links (`port`), pcap files."""
