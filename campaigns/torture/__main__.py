"""`python -m campaigns.torture --seconds 120 --seed 7`"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

from campaigns.torture.scene import Scene
from campaigns.torture.volume import enter_namespace


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m campaigns.torture", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long things go wrong")
    parser.add_argument("--seed", type=int, help="what is done and asked; random by default")
    parser.add_argument("--load", type=int, default=16, help="clients at a time")
    parser.add_argument("--keep", action="store_true", help="keep the folder with the store, the notes and the log")
    args = parser.parse_args()
    seed = secrets.randbelow(1_000_000) if args.seed is None else args.seed
    folder = Path(tempfile.mkdtemp(prefix="weftline-torture-"))
    evidence = asyncio.run(Scene(folder, seed=seed, load=args.load, keep=args.keep).play(seconds=args.seconds))
    faults = list(evidence.faults())
    print(evidence.summary())
    for fault in faults:
        print(f"FAULT: {fault}")
    print(f"{len(faults)} faults")
    if args.keep:
        print(f"kept: {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if faults else 0


if __name__ == "__main__":
    enter_namespace(["-m", "campaigns.torture", *sys.argv[1:]])
    sys.exit(main())
