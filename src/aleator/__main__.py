"""`python -m aleator`, which is what torchrun starts."""

from .cli import main

main()
