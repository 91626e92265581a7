"""The program: `anofpdm`, or `python -m anofpdm`."""

import gc

from anofpdm.util.signals import block_signals


def main() -> None:
    block_signals()  # until a command runs, which reports them
    gc.disable()  # until a command runs: start-up makes many objects and hardly any garbage
    from anofpdm.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
