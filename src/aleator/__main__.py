"""`python -m aleator`, which is what torchrun starts."""

from aleator.cli import main

main()
