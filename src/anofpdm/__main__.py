"""The program: `anofpdm`, or `python -m anofpdm`."""

import gc
import os


def main() -> None:
    gc.disable()  # until a command runs: start-up makes many objects and hardly any garbage
    # Before torch is imported. On ARM its allocator returns freed memory to the system and faults it in again for every
    # layer, which takes a sixth of the diffusion engine's time; this keeps it for 100 ms.
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", "100")
    from anofpdm.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
