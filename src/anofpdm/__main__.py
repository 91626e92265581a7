"""The program: `anofpdm`, or `python -m anofpdm`."""

import gc


def main() -> None:
    gc.disable()  # until a command runs: start-up makes many objects and hardly any garbage
    from anofpdm.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
