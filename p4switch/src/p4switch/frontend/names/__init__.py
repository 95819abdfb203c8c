"""Names, what they stand for, and the place in the program where they do."""
