"""Packet sockets, pcap files, the cache of compiled C, and private files."""
