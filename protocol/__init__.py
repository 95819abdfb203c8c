"""What crosses between the parts of hopsum: the packet layout and the control messages."""
