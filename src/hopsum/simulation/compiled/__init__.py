"""What happens to frames between hosts and switches in virtual time, compiled."""
