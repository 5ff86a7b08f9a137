"""Reads of runs that need no driver: finding runs, their calls, receipts and relatives."""
