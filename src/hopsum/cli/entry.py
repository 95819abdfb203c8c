"""The entry point of `hopsum`: it imports nothing before it can be interrupted."""

import signal


def main() -> None:
    """Run the command; an interrupt while it is imported ends it without a traceback."""
    listens = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if listens:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from hopsum.cli.main import main

    if listens:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    main()
