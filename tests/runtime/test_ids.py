"""Public ids cannot be guessed, and no two processes hand out the same."""

from __future__ import annotations

import os

from weftline.runtime.ids import new_salt


def test_salts_do_not_repeat() -> None:
    salts = [new_salt() for _ in range(1000)]
    assert len(set(salts)) == 1000
    assert {len(salt) for salt in salts} == {12}


def test_a_forked_process_draws_its_own_salts() -> None:
    new_salt()  # some are in stock now
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, new_salt().encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(reading, 12).decode()
    os.close(reading)
    os.close(writing)
    assert theirs not in [new_salt() for _ in range(100)]
