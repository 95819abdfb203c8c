"""What touches the outside world: packet loop, TCP, gRPC, Scapy and shared memory."""
