"""Frames in batches: AF_PACKET sockets, in-process links, pcap files."""

from packet_io.port import FramePort, Frames, InterfaceError, MemoryPort, PacketPort

__all__ = ["FramePort", "Frames", "InterfaceError", "MemoryPort", "PacketPort"]
