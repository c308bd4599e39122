"""Sums of expected positivity over very many pairs, as the exact loss needs them. Start in totals.py."""
