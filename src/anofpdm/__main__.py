"""`python -m anofpdm` is the same as `anofpdm`."""

from anofpdm.cli.main import main

if __name__ == "__main__":
    main()
