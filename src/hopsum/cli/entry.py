"""The entry point of `hopsum`: it imports nothing before it can be interrupted."""

import signal
import sys


def main() -> None:
    """Run the command; an interrupt while it is imported ends it without a traceback.

    The help needs neither Typer nor any command.
    """
    listens = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if listens:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.argv[1:] in (["-h"], ["--help"]):
        from hopsum.cli.commands import overview
        from p4switch.packet_io.standard_output import failures_reported

        with failures_reported("hopsum"):
            sys.stdout.write(f"{overview()}\n")
        return
    from hopsum.cli.main import main

    if listens:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    main()
