"""I/O of agents: packet loop, TCP, gRPC, Scapy and shared memory."""
