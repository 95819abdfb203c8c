"""The v1model architecture: what a switch does around and between the blocks of a program."""
