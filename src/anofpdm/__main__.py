"""The program: `anofpdm`, or `python -m anofpdm`."""

import gc
import signal


def main() -> None:
    if hasattr(signal, "pthread_sigmask"):  # first of all, and until a command runs: it reports them (util/signals.py)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    gc.disable()  # until a command runs: start-up makes many objects and hardly any garbage
    from anofpdm.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
