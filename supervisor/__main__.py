"""The `supervisor` command. Ctrl-C while its modules are loaded ends it without a traceback."""

import signal


def main() -> None:
    heard = signal.getsignal(signal.SIGINT)
    if heard is signal.default_int_handler:  # else a shell has a background job ignore it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from supervisor.cli import main as verbs

    signal.signal(signal.SIGINT, heard)
    verbs()


if __name__ == "__main__":
    main()
