"""The interfaces between hopsum's components: packet layout and control messages."""
