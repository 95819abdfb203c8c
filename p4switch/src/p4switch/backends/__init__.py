"""What runs a program of the intermediate representation."""
