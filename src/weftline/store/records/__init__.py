"""The records of a store: row types and queries, one module per family of tables.

Each query is written once, in SQL that both SQLite and Postgres accept: parameters `$1`, `$2` … in the order of their
first use, `RETURNING`, `ON CONFLICT`, booleans as integers. Queries are generators (see `weftline.store.database`),
so that they compose into one transaction with `yield from`. Secrets arrive here encrypted.
"""
