"""`python -m trinitylake` is the `trinitylake` command."""

from trinitylake.cli import main

if __name__ == "__main__":
    main()
