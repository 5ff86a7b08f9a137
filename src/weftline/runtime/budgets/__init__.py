"""Budgets: the ledger, reservations, and what follows when a limit is raised."""
