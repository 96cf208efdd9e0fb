"""`python -m waggle` is the `waggle` command."""

from waggle.cli import main

if __name__ == "__main__":
    main()
