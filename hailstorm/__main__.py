"""`python -m hailstorm` is `hailstorm`."""

from hailstorm.cli import main

if __name__ == "__main__":
    main()
