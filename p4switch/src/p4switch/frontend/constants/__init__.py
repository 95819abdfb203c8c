"""What is known when compiling, and conversions between types."""
