"""Packet sockets, pcap files, the cache of compiled C, and files that nobody else may write."""
